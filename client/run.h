// One trainer's part in a run.
#ifndef CCS_CLIENT_RUN_H_
#define CCS_CLIENT_RUN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/cluster.h"

namespace ccs::client {

// INVALID_ARGUMENT for ranks that make no sense; else what OpenRun answers.
absl::StatusOr<std::unique_ptr<Run>> OpenRun(const Cluster& cluster, const RunOptions& options);

}  // namespace ccs::client

#endif  // CCS_CLIENT_RUN_H_
