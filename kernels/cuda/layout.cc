#include "kernels/cuda/layout.h"

#include <algorithm>

#include "kernels/cuda/product.h"

namespace ccs::kernels::cuda {
namespace {

constexpr int64_t kTileUnit = 128;  // what the products like
constexpr int64_t kMostTileColumns = 8192;
constexpr int kStrideUnit = 8;  // 16 bytes of bfloat16

int64_t BytesOf(Element element) { return element == Element::kBFloat16 ? 2 : 4; }

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

int TileColumns(const ShardConfig& config, int64_t l2_bytes) {
  const Element element = ElementOf(config.precision);
  const int64_t bytes_a_logit = element == Element::kFloat ? 4 : 4 + BytesOf(element);
  const int64_t fitting = l2_bytes / 2 / (config.max_batch * bytes_a_logit) / kTileUnit * kTileUnit;
  const int64_t most = std::min(kMostTileColumns, RoundUp(std::max<int64_t>(config.num_local, 1), kTileUnit));
  return static_cast<int>(std::clamp(fitting, kTileUnit, most));
}

Layout::Layout(const ShardConfig& config, int columns, Memory* state, Memory* workspace, Memory* pinned)
    : element(ElementOf(config.precision)),
      tile_columns(columns),
      unit_stride(static_cast<int>(RoundUp(config.dim, kStrideUnit))) {
  const int64_t batch = config.max_batch;
  const int64_t dim = config.dim;
  const bool rounds = element == Element::kBFloat16;
  weight = state->Take<float>(config.num_local * dim);
  momentum = state->Take<float>(config.num_local * dim);

  sample = workspace->Take<int64_t>(config.num_local);
  features = workspace->Take<float>(batch * dim);
  feature_factors = rounds ? workspace->Take<char>(batch * unit_stride * BytesOf(element)) : nullptr;
  norms = workspace->Take<double>(batch);
  numerator = workspace->Take<float>(batch * dim);
  gradient = workspace->Take<float>(batch * dim);
  targets = workspace->Take<int64_t>(batch);
  target_columns = workspace->Take<int64_t>(batch);
  target_cosines = workspace->Take<double>(batch);
  running = workspace->Take<RunningSoftmax>(batch);
  factors = workspace->Take<RowFactors>(batch);
  unit_rows = workspace->Take<char>(int64_t{columns} * unit_stride * BytesOf(element));
  unit_row_gradients = workspace->Take<float>(columns * dim);
  cosines = workspace->Take<float>(batch * columns);
  weights = rounds ? static_cast<void*>(workspace->Take<char>(batch * columns * BytesOf(element))) : cosines;
  const int64_t all = (config.num_local + columns - 1) / columns * columns * batch;
  kept_floats = std::min(all, config.kept_logits_bytes / static_cast<int64_t>(sizeof(float)));
  kept = workspace->Take<float>(kept_floats);
  product_workspace = workspace->Take<char>(kProductWorkspaceBytes);

  host_features = pinned->Take<float>(batch * dim);
  host_gradient_sum = pinned->Take<float>(batch * dim);
  host_norms = pinned->Take<double>(batch);
  host_targets = pinned->Take<int64_t>(batch);
  host_target_columns = pinned->Take<int64_t>(batch);
  host_target_cosines = pinned->Take<double>(batch);
  host_running = pinned->Take<RunningSoftmax>(batch);
  host_factors = pinned->Take<RowFactors>(batch);
}

}  // namespace ccs::kernels::cuda
