// Moves the shard's state between the backend and the checkpoint store.
#ifndef CCS_SERVER_ENGINE_CHECKPOINTING_H_
#define CCS_SERVER_ENGINE_CHECKPOINTING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/shard_backend.h"
#include "server/engine/engine.h"
#include "server/engine/ledger.h"
#include "server/engine/progress_board.h"
#include "server/metrics/metrics.h"
#include "server/storage/checkpoint_store.h"

namespace ccs {

// Writes and restores checkpoints in blocks of rows. Used by the engine's thread only.
class Checkpointing {
 public:
  // All outlive this object; parts.checkpoints may be null.
  Checkpointing(const EngineOptions& options, const EngineParts& parts, ProgressBoard* progress);

  // Bytes on disk. The state is as it was, also after an error: FAILED_PRECONDITION without a store, else the
  // store's.
  absl::StatusOr<int64_t> Write(const CheckpointId& id, const Ledger& ledger);
  // Loads this shard's rows and the ledger, whatever the number of shards that wrote them.
  // FAILED_PRECONDITION, naming both sides, if the checkpoint is of another spec, rank or class range;
  // otherwise the store's errors. Rows are undefined after an error.
  absl::Status Restore(const CheckpointId& id, Ledger* ledger);
  // Removes checkpoints beyond the number kept. Returns where the oldest one of `newest`'s lineage that is
  // left stands.
  absl::StatusOr<Position> Prune(const CheckpointId& newest);

 private:
  absl::StatusOr<int64_t> WriteBlocks(const CheckpointId& id, const Ledger& ledger);
  absl::Status CheckHeader(const CheckpointHeader& header) const;
  int64_t RowsPerBlock() const;

  const EngineOptions& options_;
  kernels::ShardBackend* const backend_;
  CheckpointStore* const store_;
  Metrics* const metrics_;
  ProgressBoard* const progress_;
  std::vector<float> weight_;    // one block
  std::vector<float> momentum_;  // one block
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_CHECKPOINTING_H_
