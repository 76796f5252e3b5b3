// The collective of several shards on CPUs: Gloo over TCP.
#ifndef CCS_SERVER_CLUSTER_GLOO_COLLECTIVE_H_
#define CCS_SERVER_CLUSTER_GLOO_COLLECTIVE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/cluster/collective.h"

namespace ccs {

// Connects every rank with every other one; all must call this at about the same time. Uses `rendezvous`
// once, to exchange addresses. Ignores SIGPIPE for the whole process from then on (unless there is a
// handler), because Gloo writes to sockets whose peer may be gone.
//
// Errors: UNAVAILABLE if the host's address cannot be listened on or a peer cannot be reached,
// DEADLINE_EXCEEDED after options.deadline, or what `rendezvous` returned.
absl::StatusOr<std::unique_ptr<Collective>> MakeGlooCollective(const CollectiveOptions& options,
                                                               const Rendezvous& rendezvous);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_GLOO_COLLECTIVE_H_
