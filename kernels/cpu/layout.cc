#include "kernels/cpu/layout.h"

namespace ccs::kernels {
namespace {

// No more than all tiles of the largest batch over every row.
int64_t KeptFloats(const ShardConfig& config) {
  const int64_t all = CeilDiv(config.num_local, kTileColumns) * config.max_batch * kTileStride;
  return std::min<int64_t>(all, config.kept_logits_bytes / static_cast<int64_t>(sizeof(float)));
}

}  // namespace

Layout::Layout(const ShardConfig& config, Arena* state, Arena* workspace)
    : row_stride(config.dim + kStridePadding),
      kept_floats(KeptFloats(config)),
      weight(state->Take<float>(config.num_local * config.dim)),
      momentum(state->Take<float>(config.num_local * config.dim)) {
  const int64_t batch = config.max_batch;
  features = workspace->Take<float>(batch * config.dim);
  numerator = workspace->Take<float>(batch * config.dim);
  labels = workspace->Take<int64_t>(batch);
  rows = workspace->Take<BatchRow>(batch);
  partials = workspace->Take<RowPartial>(batch);
  gathered = workspace->Take<RowPartial>(batch * config.num_shards);
  kept = workspace->Take<float>(kept_floats);
  scratch = workspace->Take<Scratch>(config.threads);
  for (int worker = 0; worker < config.threads; ++worker) {
    Scratch taken{workspace->Take<float>(int64_t{kTileColumns} * row_stride),
                  workspace->Take<float>(int64_t{kTileColumns} * row_stride),
                  workspace->Take<float>(int64_t{kChunkRows} * kTileStride)};
    if (scratch != nullptr) scratch[worker] = taken;
  }
}

}  // namespace ccs::kernels
