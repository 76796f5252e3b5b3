// Pass 1: partials of the softmax and the numerator of the feature gradient.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/product.h"

namespace ccs::kernels {

absl::Status CpuBackend::Pass1(const Head& head, absl::Span<const int64_t> sampled_rows) {
  if (absl::Status status = CheckPhase(Phase::kBatch); !status.ok()) return status;
  phase_ = Phase::kBatch;
  if (absl::Status status = SetTargets(head, sampled_rows); !status.ok()) return status;
  if (sampled_.size() == 0) std::fill_n(memory_.numerator, int64_t{batch_} * config_.dim, 0.0f);
  absl::Status status =
      WalkTiles(memory_, config_.dim, batch_, sampled_, &pool_,
                [this](const Chunk& chunk, const Tile& tile, const float* unit_rows, int worker) {
                  return AddToNumerator(chunk, tile, unit_rows, worker);
                });
  if (!status.ok()) return status;
  for (int i = 0; i < batch_; ++i) {
    memory_.partials[i].max = memory_.rows[i].others.max;
    memory_.partials[i].exp_sum = memory_.rows[i].others.exp_sum;
  }
  phase_ = Phase::kScored;
  return absl::OkStatus();
}

// The numerator of row i is sum_j exp(z_ij - max_i) w_j over the tiles so far, in step with its maximum.
absl::Status CpuBackend::AddToNumerator(const Chunk& chunk, const Tile& tile, const float* unit_rows,
                                        int worker) {
  float* weights = memory_.scratch[worker].weights;
  float* cosines = tile.index < num_kept_tiles() ? KeptCosines(chunk, tile) : weights;
  if (absl::Status status = ScoreOthers(chunk, tile, unit_rows, cosines); !status.ok()) return status;
  float* numerator = memory_.numerator + int64_t{chunk.first} * config_.dim;
  for (int i = 0; i < chunk.rows; ++i) {
    const int batch_row = chunk.first + i;
    const int64_t at = int64_t{i} * kTileStride;
    RunningSoftmax& others = memory_.rows[batch_row].others;
    const TileWeights tile_weights = AddToSoftmax(cosines + at, tile.columns, rule_, &others, weights + at);
    if (tile.index > 0 && tile_weights.rescale != 1.0f) {
      float* row = numerator + int64_t{i} * config_.dim;
      Scale(row, tile_weights.rescale, config_.dim, row);
    }
    const double large = kLargeShare * others.exp_sum;
    if (tile_weights.largest > large) {
      others.exp_sum +=
          RefineWeights(batch_row, tile, others.max, 1.0, static_cast<float>(large), weights + at);
    }
  }
  return Multiply({chunk.rows, config_.dim, tile.columns}, {weights, kTileStride},
                  {unit_rows, memory_.row_stride},
                  /*accumulate=*/tile.index > 0, numerator, config_.dim);
}

}  // namespace ccs::kernels
