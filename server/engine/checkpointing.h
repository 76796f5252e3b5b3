// Moves the shard's state between the backend and the checkpoint store.
#ifndef CCS_SERVER_ENGINE_CHECKPOINTING_H_
#define CCS_SERVER_ENGINE_CHECKPOINTING_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/shard_backend.h"
#include "server/engine/engine.h"
#include "server/engine/ledger.h"
#include "server/engine/progress_board.h"
#include "server/engine/row_snapshot.h"
#include "server/metrics/metrics.h"
#include "server/storage/checkpoint_store.h"

namespace ccs {

// Writes checkpoints in the background, of the rows as they were when each began, and restores them. One that
// builds on the last one, with the rows that have changed since, is written where that is less work and the
// files of both together stay below twice the rows. Used by the engine's thread only.
class Checkpointing {
 public:
  // How one ended.
  struct Outcome {
    uint64_t sequence = 0;
    CheckpointId id;
    absl::Status status;
    int64_t bytes = 0;  // on disk
  };

  // All outlive this object; parts.checkpoints may be null. `on_written` is called on the thread that writes,
  // when there is an outcome for Finish; after that the thread does nothing more.
  Checkpointing(const EngineOptions& options, const EngineParts& parts, ProgressBoard* progress,
                std::function<void()> on_written);
  // Cancels.
  ~Checkpointing();

  // Begins to write. None is being written. `kept`: it stays until Release. FAILED_PRECONDITION without a
  // store.
  absl::Status Start(uint64_t sequence, const CheckpointId& id, bool kept, Ledger ledger);
  bool is_writing() const { return writer_.joinable(); }
  // Waits for the end of the one that is being written.
  Outcome Finish();
  // Breaks off the one that is being written, if any.
  void Cancel();
  // Rows of the shard are about to change; call this before each change. Returns how long it took: copying
  // rows that the checkpoint still needs, and waiting for room.
  absl::Duration BeforeChange(absl::Span<const int64_t> rows);

  // Loads this shard's rows and the ledger, whatever the number of shards that wrote them.
  // FAILED_PRECONDITION, naming both sides, if the checkpoint is of another spec, rank or class range;
  // otherwise the store's errors. Rows are undefined after an error. None is being written.
  absl::Status Restore(const CheckpointId& id, Ledger* ledger);
  // The initial weights. None is being written.
  absl::Status Initialise();
  // Removes checkpoints beyond the number kept. Returns where the oldest one within that number and of
  // `newest`'s lineage stands: the log before it would only serve those that were asked for, which may stay
  // for long.
  absl::StatusOr<Position> Prune(const CheckpointId& newest);
  // FAILED_PRECONDITION without a store, otherwise the store's errors.
  absl::Status Release(const CheckpointId& id);

 private:
  // A checkpoint that the next can build on.
  struct Base {
    CheckpointId id;
    int64_t bytes = 0;
  };

  bool ShouldBuildOnBase() const;
  // The thread that writes.
  void Write(const CheckpointHeader& header, const std::optional<CheckpointId>& base, const Ledger& ledger);
  absl::StatusOr<CheckpointSize> WriteBlocks(const CheckpointHeader& header,
                                             const std::optional<CheckpointId>& base, const Ledger& ledger);
  absl::Status RestoreRows(CheckpointReader& reader);
  absl::Status CheckHeader(const CheckpointHeader& header) const;

  const EngineOptions& options_;
  kernels::ShardBackend* const backend_;
  CheckpointStore* const store_;
  Metrics* const metrics_;
  ProgressBoard* const progress_;
  const std::function<void()> on_written_;
  RowSnapshot rows_;
  std::optional<Base> base_;

  std::thread writer_;
  std::atomic<bool> cancelled_ = false;
  // The writer's until it is joined.
  Outcome outcome_;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_CHECKPOINTING_H_
