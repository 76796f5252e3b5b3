// The engine's way to the step log.
#ifndef CCS_SERVER_ENGINE_CHANGE_LOG_H_
#define CCS_SERVER_ENGINE_CHANGE_LOG_H_

#include <future>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/change.h"
#include "server/engine/types.h"
#include "server/storage/step_log.h"

namespace ccs {

// Writes one change at a time beside the work on it. Without a log nothing is kept and everything succeeds.
// Used by the engine's thread only.
class ChangeLog {
 public:
  // May be null; outlives this object.
  explicit ChangeLog(StepLog* log) : log_(log) {}

  bool on() const { return log_ != nullptr; }
  // What Append is given is on disk already while it is replayed.
  void set_replaying(bool replaying) { replaying_ = replaying; }

  // Begins to write the change that leads to `position`, which Wait completes. The change's slices are read
  // meanwhile.
  void Append(const Position& position, Change change);
  // Returns once the change is on disk, or could not be written.
  absl::Status Wait();

  absl::StatusOr<LogRecord> Read(const Position& position);
  // The plan's state is reached: a new lineage begins there, or what lies beyond is of an attempt that nobody
  // was told of.
  absl::Status Settle(const EpochPlan& plan, const Position& position);
  // Keeps what is needed to go on from `position`.
  absl::Status Cut(const Position& position);

 private:
  StepLog* const log_;
  bool replaying_ = false;
  std::future<absl::Status> writing_;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_CHANGE_LOG_H_
