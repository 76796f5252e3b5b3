// A shard's rows as they were at one moment, for a checkpoint, while training goes on to change them.
#ifndef CCS_SERVER_ENGINE_ROW_SNAPSHOT_H_
#define CCS_SERVER_ENGINE_ROW_SNAPSHOT_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/shard_backend.h"

namespace ccs {

// Rows that lie together, [num_rows, dim] each.
struct RowPiece {
  int64_t first_row = 0;  // of the shard
  int64_t num_rows = 0;   // 0: there are no more
  std::vector<float> weight;
  std::vector<float> momentum;
};

// Copies on write: a row that is about to change before it was taken is copied to a staging buffer first;
// when that is full, the change waits for the thread that takes. Staged rows are taken first, so that the
// buffer empties as fast as the disk writes. Rows are handled in blocks, the unit that a checkpoint writes,
// of which it also knows which have changed since the last snapshot that was kept.
//
// One thread, the engine's, calls everything but Take and Abandon; another one takes.
class RowSnapshot {
 public:
  // Blocks are aligned to global class ids. At least one block is staged, whatever `staging_bytes` says.
  // The backend outlives this object; nothing is known of its rows yet: all count as changed.
  RowSnapshot(kernels::ShardBackend* backend, int64_t rows_per_block, int64_t staging_bytes);

  int64_t num_blocks() const { return static_cast<int64_t>(changed_.size()); }
  int64_t num_changed() const { return num_changed_; }

  // All rows were replaced by ones that are on disk, or by ones that are not. No snapshot is open.
  void SetAllChanged(bool changed);
  // Opens a snapshot of the blocks that have changed, or of all.
  void Begin(bool everything);
  // Rows are about to change (of the shard, in any order). Blocks while the staging buffer is full.
  void BeforeChange(absl::Span<const int64_t> rows);
  // Closes the snapshot. Unless it was kept, its blocks have still changed since the last that was.
  void End(bool kept);

  // Thread of the taker. The next rows in the state of Begin; the buffers of `piece` are used again.
  absl::Status Take(RowPiece* piece);
  // Nothing more is taken: changes no longer wait. Any thread.
  void Abandon();

 private:
  enum class Block : uint8_t { kNotWanted, kPending, kStaged };

  int64_t BlockOfRow(int64_t row) const { return (class_start_ + row) / rows_per_block_ - first_block_; }
  int64_t FirstRow(int64_t block) const;  // num_blocks() is the end
  int64_t Bytes(int64_t num_rows) const;
  absl::Status Copy(int64_t first_row, int64_t end_row, RowPiece* piece) const;
  void Stage(int64_t block);

  kernels::ShardBackend* const backend_;
  const int64_t class_start_;
  const int64_t rows_per_block_;
  const int64_t first_block_;  // global number
  const int64_t staging_bytes_;

  // The engine's thread only.
  std::vector<bool> changed_;  // since the last snapshot that was kept, those of an open one not counted
  std::vector<bool> in_snapshot_;
  int64_t num_changed_ = 0;
  bool open_ = false;

  std::mutex mutex_;
  std::condition_variable room_;
  std::vector<Block> blocks_;
  int64_t cursor_ = 0;  // no block before it is pending
  std::deque<RowPiece> staged_;
  int64_t staged_bytes_ = 0;  // with what the taker works on
  int64_t taken_bytes_ = 0;   // of it, what the taker works on
  absl::Status failed_;       // a row could not be copied
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_ROW_SNAPSHOT_H_
