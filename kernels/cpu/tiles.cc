#include "kernels/cpu/tiles.h"

#include <cmath>

namespace ccs::kernels {

void PackUnitRows(const float* weight, int dim, const RowSet& set, const Tile& tile, float* unit_rows,
                  int row_stride) {
  for (int column = 0; column < tile.columns; ++column) {
    const float* row = weight + set[tile.first + column] * dim;
    const double norm = std::sqrt(Dot(row, row, dim));
    Scale(row, static_cast<float>(1.0 / std::max(norm, kMinNorm)), dim,
          unit_rows + int64_t{column} * row_stride);
  }
}

absl::Status WalkTiles(const Layout& memory, int dim, int batch, const RowSet& set, ThreadPool* pool,
                       const TileVisitor& visit) {
  const int64_t tiles = CeilDiv(set.size(), kTileColumns);
  const int64_t chunks = CeilDiv(batch, kChunkRows);
  SharedStatus result;
  for (int64_t block = 0; block < tiles && result.status().ok(); block += pool->threads()) {
    const int64_t in_block = std::min<int64_t>(pool->threads(), tiles - block);
    pool->ParallelFor(in_block, [&](int64_t i, int) {
      PackUnitRows(memory.weight, dim, set, TileAt(set, block + i), memory.scratch[i].unit_rows,
                   memory.row_stride);
    });
    pool->ParallelFor(chunks, [&](int64_t c, int worker) {
      for (int64_t i = 0; i < in_block; ++i) {
        result.Update(visit(ChunkAt(batch, c), TileAt(set, block + i), memory.scratch[i].unit_rows, worker));
      }
    });
  }
  return result.status();
}

}  // namespace ccs::kernels
