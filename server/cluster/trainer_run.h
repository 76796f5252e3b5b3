// How trainers enter a run.
#ifndef CCS_SERVER_CLUSTER_TRAINER_RUN_H_
#define CCS_SERVER_CLUSTER_TRAINER_RUN_H_

#include <ccs/v1/cluster.pb.h>

#include "absl/status/statusor.h"
#include "server/engine/types.h"

namespace ccs {

// The run after a trainer's request: a new one if none is open, with the trainer's incarnation set to its
// start nonce. INVALID_ARGUMENT for a request that makes no sense; FAILED_PRECONDITION, both sides named, if
// another run is open or this one with another number of trainers, unless that one is `replaceable`.
absl::StatusOr<RunState> OpenedRun(const RunState& run, const v1::OpenRunRequest& request, bool replaceable);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_TRAINER_RUN_H_
