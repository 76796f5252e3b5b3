// What the engine and the assembler tell the coordinator.
#ifndef CCS_SERVER_ENGINE_CONTROL_PLANE_H_
#define CCS_SERVER_ENGINE_CONTROL_PLANE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/types.h"

namespace ccs {

// Thread-safe; no call blocks or calls back. Messages of an epoch that is over are dropped on the way.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  // A valid slice has arrived: `version` of it in `attempt` of its step.
  virtual void SliceReady(const Slice& slice, int version, int attempt) = 0;
  // `rows` rows are staged here under the id, in all.
  virtual void WriteStaged(const std::string& write_id, int64_t rows) = 0;
  // The state of the plan is restored, its collectives are connected; or why not.
  virtual void Formed(uint64_t epoch, const absl::StatusOr<FormedState>& state) = 0;
  // An operation that every shard must finish is finished here, or has failed without a change of state:
  // commits, changes of the run, checkpoints and their release, and steps that carry a checkpoint.
  virtual void OperationDone(uint64_t sequence, const absl::Status& status, int64_t bytes) = 0;
  // The engine cannot go on with this epoch.
  virtual void EpochFailed(const absl::Status& status) = 0;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_CONTROL_PLANE_H_
