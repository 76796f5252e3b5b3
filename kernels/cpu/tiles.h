// The walk over classes in tiles and batch rows in chunks that all passes share.
#ifndef CCS_KERNELS_CPU_TILES_H_
#define CCS_KERNELS_CPU_TILES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/thread_pool.h"

namespace ccs::kernels {

// The local rows that take part, in order.
class RowSet {
 public:
  RowSet() = default;
  explicit RowSet(absl::Span<const int64_t> rows)
      : rows_(rows.data()), size_(static_cast<int64_t>(rows.size())) {}
  static RowSet All(int64_t num_local) {
    RowSet set;
    set.size_ = num_local;
    return set;
  }

  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const { return rows_ == nullptr ? i : rows_[i]; }

 private:
  const int64_t* rows_ = nullptr;  // null: every row
  int64_t size_ = 0;
};

struct Tile {
  int64_t index;
  int64_t first;  // in the row set
  int columns;
};

struct Chunk {
  int first;  // in the batch
  int rows;
};

inline Tile TileAt(const RowSet& set, int64_t index) {
  const int64_t first = index * kTileColumns;
  return {index, first, static_cast<int>(std::min<int64_t>(kTileColumns, set.size() - first))};
}

inline Chunk ChunkAt(int batch, int64_t index) {
  const int first = static_cast<int>(index) * kChunkRows;
  return {first, std::min(kChunkRows, batch - first)};
}

// w / max(|w|, 1e-12), of every row of the tile.
void PackUnitRows(const float* weight, int dim, const RowSet& set, const Tile& tile, float* unit_rows,
                  int row_stride);

// The first error of several threads.
class SharedStatus {
 public:
  void Update(const absl::Status& status) {
    if (status.ok() || failed_.exchange(true)) return;
    first_ = status;
  }
  // After the threads are done.
  const absl::Status& status() const { return first_; }

 private:
  std::atomic<bool> failed_{false};
  absl::Status first_;
};

// Calls visit(chunk, tile, unit_rows, worker) for all chunks and tiles of `set`: for one chunk in the order
// of the tiles, for different chunks at the same time. As many tiles as there are threads are packed at once
// and shared.
using TileVisitor =
    std::function<absl::Status(const Chunk&, const Tile&, const float* unit_rows, int worker)>;
absl::Status WalkTiles(const Layout& memory, int dim, int batch, const RowSet& set, ThreadPool* pool,
                       const TileVisitor& visit);

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CPU_TILES_H_
