// Who may join a group.
#ifndef CCS_SERVER_CLUSTER_FORMATION_H_
#define CCS_SERVER_CLUSTER_FORMATION_H_

#include <ccs/v1/cluster.pb.h>

#include "absl/status/status.h"
#include "server/cluster/coordinator.h"

namespace ccs {

// INVALID_ARGUMENT for a rank out of range, FAILED_PRECONDITION for a differing number of shards, spec or
// version, both values named.
absl::Status CheckRegistration(const CoordinatorOptions& options, const v1::Register& registration);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_FORMATION_H_
