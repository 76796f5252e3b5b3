// Class centres: initial weights, gathering, the update. One warp a row.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/random.h"

namespace ccs::kernels::cuda {
namespace {

constexpr int64_t kMostBlocks = 1 << 20;  // of kernels that walk over any number of items

// Box-Muller, as in random.cc.
__device__ void NormalPair(uint32_t a, uint32_t b, float* out) {
  const float uniform = (static_cast<float>(a) + 0.5f) * 0x1p-32f;
  const float radius = 0.01f * sqrtf(-2.0f * logf(uniform));
  const float angle = static_cast<float>(b) * (6.28318530717958647692f * 0x1p-32f);
  out[0] = radius * cosf(angle);
  out[1] = radius * sinf(angle);
}

// One thread four values of a row.
__global__ void InitialiseRowsKernel(Rows rows, int64_t num_local, int64_t class_start, uint64_t seed) {
  const int in_row = (rows.dim + 3) / 4;
  const int64_t step = int64_t{gridDim.x} * kBlockThreads;
  for (int64_t item = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; item < num_local * in_row;
       item += step) {
    const int64_t row = item / in_row;
    const int first = static_cast<int>(item % in_row) * 4;
    const RandomBlock words =
        RandomAt(seed, RandomDomain::kInitialWeights, static_cast<uint64_t>(class_start + row), 0, first / 4);
    float values[4];
    NormalPair(words[0], words[1], values);
    NormalPair(words[2], words[3], values + 2);
    for (int i = 0; i < 4 && first + i < rows.dim; ++i) {
      rows.weight[row * rows.dim + first + i] = values[i];
      rows.momentum[row * rows.dim + first + i] = 0;
    }
  }
}

template <int kWidth, typename T>
__global__ void GatherUnitRowsKernel(Rows rows, Tile tile, T* unit_rows, int stride) {
  const int64_t column = WarpInGrid();
  if (column >= tile.columns) return;
  const float* weight = rows.weight + LocalRow(rows, tile.first + column) * rows.dim;
  T* unit = unit_rows + column * stride;
  const double norm = sqrt(WarpDot<kWidth>(weight, weight, rows.dim));
  const float factor = static_cast<float>(1.0 / fmax(norm, kMinNorm));
  ForLaneValues<kWidth>(rows.dim, [&](int d) {
    const auto from = Load<kWidth>(weight + d);
    Pack<T, kWidth> to;
    for (int i = 0; i < kWidth; ++i) to.values[i] = FromFloat<T>(factor * from.values[i]);
    Store<kWidth>(to, unit + d);
  });
}

template <int kWidth>
__global__ void UpdateRowsKernel(Rows rows, Tile tile, const float* gradients, Update update) {
  const int64_t column = WarpInGrid();
  if (column >= tile.columns) return;
  const int64_t at = LocalRow(rows, tile.first + column) * rows.dim;
  float* weight = rows.weight + at;
  float* momentum = rows.momentum + at;
  const float* gradient = gradients + column * rows.dim;
  const double norm = sqrt(WarpDot<kWidth>(weight, weight, rows.dim));
  const double radial_dot = WarpDot<kWidth>(gradient, weight, rows.dim);
  const double along = norm > kMinNorm ? 1 / norm : 0;
  const auto gradient_factor = static_cast<float>(along);
  const auto weight_factor = static_cast<float>(update.weight_decay - radial_dot * along * along * along);
  ForLaneValues<kWidth>(rows.dim, [&](int d) {
    const auto g = Load<kWidth>(gradient + d);
    auto w = Load<kWidth>(weight + d);
    auto v = Load<kWidth>(momentum + d);
    for (int i = 0; i < kWidth; ++i) {
      v.values[i] =
          fmaf(update.momentum, v.values[i], fmaf(gradient_factor, g.values[i], weight_factor * w.values[i]));
      w.values[i] = fmaf(-update.learning_rate, v.values[i], w.values[i]);
    }
    Store<kWidth>(v, momentum + d);
    Store<kWidth>(w, weight + d);
  });
}

template <typename T>
cudaError_t GatherAs(const Rows& rows, const Tile& tile, T* unit_rows, int stride, cudaStream_t stream) {
  return Launch(IsWide(rows.dim) ? GatherUnitRowsKernel<4, T> : GatherUnitRowsKernel<1, T>,
                BlocksFor(tile.columns, kBlockWarps), kBlockThreads, stream, rows, tile, unit_rows, stride);
}

}  // namespace

cudaError_t InitialiseRows(const Rows& rows, int64_t num_local, int64_t class_start, uint64_t seed,
                           cudaStream_t stream) {
  const int64_t blocks = BlocksFor(num_local * ((rows.dim + 3) / 4), kBlockThreads);
  return Launch(InitialiseRowsKernel, blocks < kMostBlocks ? blocks : kMostBlocks, kBlockThreads, stream,
                rows, num_local, class_start, seed);
}

cudaError_t GatherUnitRows(const Rows& rows, const Tile& tile, Element element, void* unit_rows, int stride,
                           cudaStream_t stream) {
  if (element == Element::kBFloat16) {
    return GatherAs(rows, tile, static_cast<__nv_bfloat16*>(unit_rows), stride, stream);
  }
  return GatherAs(rows, tile, static_cast<float*>(unit_rows), stride, stream);
}

cudaError_t UpdateRows(const Rows& rows, const Tile& tile, const float* gradients, const Update& update,
                       cudaStream_t stream) {
  return Launch(IsWide(rows.dim) ? UpdateRowsKernel<4> : UpdateRowsKernel<1>,
                BlocksFor(tile.columns, kBlockWarps), kBlockThreads, stream, rows, tile, gradients, update);
}

}  // namespace ccs::kernels::cuda
