// The collective of a group of one: it only copies.
#ifndef CCS_SERVER_CLUSTER_LOCAL_COLLECTIVE_H_
#define CCS_SERVER_CLUSTER_LOCAL_COLLECTIVE_H_

#include <memory>

#include "server/cluster/collective.h"

namespace ccs {

// Deadlines never pass here, since nothing waits.
std::unique_ptr<Collective> MakeLocalCollective();

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_LOCAL_COLLECTIVE_H_
