// Pass 2: the update of the sampled rows.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/product.h"

namespace ccs::kernels {

absl::Status CpuBackend::Pass2(const UpdateParams& params) {
  if (absl::Status status = CheckPhase(Phase::kCombined); !status.ok()) return status;
  phase_ = Phase::kNothing;
  const RowUpdate update{params.learning_rate, params.momentum, params.weight_decay};
  SharedStatus result;
  pool_.ParallelFor(CeilDiv(sampled_.size(), kTileColumns), [&](int64_t t, int worker) {
    const Tile tile = TileAt(sampled_, t);
    const Scratch& scratch = memory_.scratch[worker];
    const absl::Status status = UnitGradient(tile, scratch);
    result.Update(status);
    if (!status.ok()) return;
    for (int column = 0; column < tile.columns; ++column) {
      const int64_t at = sampled_[tile.first + column] * config_.dim;
      UpdateRow(scratch.gradient + int64_t{column} * memory_.row_stride, config_.dim, update,
                memory_.weight + at, memory_.momentum + at);
    }
  });
  return result.status();
}

// g_j = sum_i G_ij x_i of the tile's classes, into scratch.gradient.
absl::Status CpuBackend::UnitGradient(const Tile& tile, const Scratch& scratch) {
  if (batch_ == 0) std::fill_n(scratch.gradient, int64_t{tile.columns} * memory_.row_stride, 0.0f);
  const bool kept = tile.index < num_kept_tiles();
  if (!kept) {
    PackUnitRows(memory_.weight, config_.dim, sampled_, tile, scratch.unit_rows, memory_.row_stride);
  }
  for (int64_t c = 0; c < CeilDiv(batch_, kChunkRows); ++c) {
    const Chunk chunk = ChunkAt(batch_, c);
    float* weights = scratch.weights;
    const float* cosines = kept ? KeptCosines(chunk, tile) : weights;
    if (!kept) {
      if (absl::Status status = ScoreOthers(chunk, tile, scratch.unit_rows, weights); !status.ok())
        return status;
    }
    for (int i = 0; i < chunk.rows; ++i) {
      const BatchRow& row = memory_.rows[chunk.first + i];
      const int64_t at = int64_t{i} * kTileStride;
      const float largest = ExpScaled(cosines + at, tile.columns, rule_, row.factors.reference,
                                      row.factors.other, weights + at);
      if (largest > kLargeShare) {
        RefineWeights(chunk.first + i, tile, row.factors.reference, row.factors.other,
                      static_cast<float>(kLargeShare) * row.factors.other, weights + at);
      }
      const int64_t target = row.target_column - tile.first;
      if (target >= 0 && target < tile.columns) weights[at + target] = row.factors.target;
    }
    absl::Status status = Multiply(
        {tile.columns, config_.dim, chunk.rows}, {weights, kTileStride, /*transposed=*/true},
        {UnitFeatures(chunk.first), config_.dim}, /*accumulate=*/c > 0, scratch.gradient, memory_.row_stride);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ccs::kernels
