// The row-wise passes over a tile of cosines. One block a batch row.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"

namespace ccs::kernels::cuda {
namespace {

constexpr float kLowestExponent = -87.0f;  // exp of less is no normal float
constexpr int kColumnsAtOnce = 4;

__device__ inline float NoLogit() { return -INFINITY; }

// A row of a tile as one thread of the block sees it.
template <typename T>
struct RowOfTile {
  __device__ RowOfTile(const ScoredTile& tile, int64_t batch_row)
      : cosines(tile.cosines + batch_row * tile.stride),
        weights(static_cast<T*>(tile.weights) + batch_row * tile.stride),
        columns(tile.tile.columns),
        target(tile.target_columns[batch_row] < 0 ? -1 : tile.target_columns[batch_row] - tile.tile.first),
        rule(tile.rule) {}

  __device__ bool IsOther(int column) const { return column < columns && column != target; }
  __device__ bool Passes(float cosine) const { return cosine <= rule.filter; }
  // One rounding only between the cosine and the exponent.
  __device__ float Exp(float cosine, float reference) const {
    const float exponent = fmaf(rule.scale, Passes(cosine) ? cosine : 0.0f, -reference);
    return exponent >= kLowestExponent ? expf(exponent) : 0.0f;
  }

  // weights[column] = weigh(column, cosine) over the thread's columns. Rows are padded to whole packs; what
  // lies behind the last column is read and overwritten, and never used.
  template <typename Weigh>
  __device__ void SetWeights(const Weigh& weigh) const {
    ForColumns([&](int column, const Pack<float, kColumnsAtOnce>& pack) {
      Pack<T, kColumnsAtOnce> out;
      for (int i = 0; i < kColumnsAtOnce; ++i) {
        out.values[i] = FromFloat<T>(column + i < columns ? weigh(column + i, pack.values[i]) : 0.0f);
      }
      Store<kColumnsAtOnce>(out, weights + column);
    });
  }

  __device__ float MaxLogit() const {
    float max = NoLogit();
    ForColumns([&](int column, const Pack<float, kColumnsAtOnce>& pack) {
      for (int i = 0; i < kColumnsAtOnce; ++i) {
        if (!IsOther(column + i)) continue;
        max = fmaxf(max, Passes(pack.values[i]) ? rule.scale * pack.values[i] : 0.0f);
      }
    });
    return max;
  }

  const float* cosines;
  T* weights;
  int columns;
  int64_t target;  // its own class's column, if that is in [0, columns)
  LogitRule rule;

 private:
  template <typename Visit>
  __device__ void ForColumns(const Visit& visit) const {
    for (int column = static_cast<int>(threadIdx.x) * kColumnsAtOnce; column < columns;
         column += kBlockThreads * kColumnsAtOnce) {
      visit(column, Load<kColumnsAtOnce>(cosines + column));
    }
  }
};

// Calls replace(column, cosine) with the cosine in double for every other column whose weight is above
// `large`, by one lane; the warps share the columns.
template <int kWidth, typename T, typename Replace>
__device__ void ForLargeWeights(const ScoredTile& tile, const RowOfTile<T>& row, float large,
                                const Replace& replace) {
  const float* features = tile.batch.features + int64_t{blockIdx.x} * tile.batch.dim;
  for (int base = Warp() * kWarpSize; base < row.columns; base += kBlockThreads) {
    const int own = base + Lane();
    const bool is_large = row.IsOther(own) && ToFloat(row.weights[own]) > large;
    for (unsigned found = __ballot_sync(kAllLanes, is_large); found != 0; found &= found - 1) {
      const int column = base + __ffs(static_cast<int>(found)) - 1;
      const float* weight = tile.rows.weight + LocalRow(tile.rows, tile.tile.first + column) * tile.rows.dim;
      const double cosine = WarpCosine<kWidth>(features, weight, tile.rows.dim);
      if (Lane() == 0) replace(column, cosine);
    }
  }
}

template <int kWidth, typename T>
__global__ void AddTileToSoftmaxKernel(ScoredTile tile, RunningSoftmax* running, float* numerator) {
  const RowOfTile<T> row(tile, blockIdx.x);
  const RunningSoftmax before = running[blockIdx.x];
  const float max = fmaxf(before.max, BlockReduce<Max>(row.MaxLogit()));
  if (max == NoLogit()) {  // no column yet
    row.SetWeights([](int, float) { return 0.0f; });
    return;
  }
  double sum = 0;
  float largest = 0;
  row.SetWeights([&](int column, float cosine) {
    if (!row.IsOther(column)) return 0.0f;
    const float e = row.Exp(cosine, max);
    sum += e;
    if (!row.Passes(cosine)) return 0.0f;
    largest = fmaxf(largest, e);
    return e;
  });
  const float rescale = before.max == NoLogit() ? 0.0f : expf(before.max - max);
  const double exp_sum = before.exp_sum * rescale + BlockReduce<Sum>(sum);
  if (numerator != nullptr && tile.tile.first > 0 && rescale != 1.0f) {
    float* values = numerator + int64_t{blockIdx.x} * tile.batch.dim;
    for (int d = static_cast<int>(threadIdx.x); d < tile.batch.dim; d += kBlockThreads) values[d] *= rescale;
  }
  const double large = kLargeShare * exp_sum;
  double growth = 0;
  if (BlockReduce<Max>(largest) > large) {
    ForLargeWeights<kWidth>(tile, row, static_cast<float>(large), [&](int column, double cosine) {
      // What was summed: float weights may lie in the place of the cosines, others are rounded.
      const float old =
          sizeof(T) == sizeof(float) ? ToFloat(row.weights[column]) : row.Exp(row.cosines[column], max);
      const auto refined = static_cast<float>(exp(row.rule.scale * cosine - max));
      growth += static_cast<double>(refined) - old;
      row.weights[column] = FromFloat<T>(refined);
    });
    growth = BlockReduce<Sum>(growth);
  }
  if (threadIdx.x == 0) running[blockIdx.x] = {max, exp_sum + growth};
}

template <int kWidth, typename T>
__global__ void GradientTileKernel(ScoredTile tile, const RowFactors* factors) {
  const RowOfTile<T> row(tile, blockIdx.x);
  const RowFactors factor = factors[blockIdx.x];
  float largest = 0;
  row.SetWeights([&](int column, float cosine) {
    if (column == row.target) return factor.target;
    if (factor.other == 0 || !row.Passes(cosine)) return 0.0f;
    const float e = row.Exp(cosine, factor.reference);
    largest = fmaxf(largest, e);
    return factor.other * e;
  });
  if (BlockReduce<Max>(largest) > static_cast<float>(kLargeShare)) {
    ForLargeWeights<kWidth>(
        tile, row, static_cast<float>(kLargeShare) * factor.other, [&](int column, double cosine) {
          const double z = row.rule.scale * cosine;
          row.weights[column] = FromFloat<T>(static_cast<float>(factor.other * exp(z - factor.reference)));
        });
  }
}

template <typename T>
cudaError_t AddAs(const ScoredTile& scored, RunningSoftmax* running, float* numerator, cudaStream_t stream) {
  return Launch(IsWide(scored.batch.dim) ? AddTileToSoftmaxKernel<4, T> : AddTileToSoftmaxKernel<1, T>,
                scored.batch.rows, kBlockThreads, stream, scored, running, numerator);
}

template <typename T>
cudaError_t GradientAs(const ScoredTile& scored, const RowFactors* factors, cudaStream_t stream) {
  return Launch(IsWide(scored.batch.dim) ? GradientTileKernel<4, T> : GradientTileKernel<1, T>,
                scored.batch.rows, kBlockThreads, stream, scored, factors);
}

}  // namespace

cudaError_t AddTileToSoftmax(const ScoredTile& scored, RunningSoftmax* running, float* numerator,
                             cudaStream_t stream) {
  return scored.element == Element::kBFloat16 ? AddAs<__nv_bfloat16>(scored, running, numerator, stream)
                                              : AddAs<float>(scored, running, numerator, stream);
}

cudaError_t GradientTile(const ScoredTile& scored, const RowFactors* factors, cudaStream_t stream) {
  return scored.element == Element::kBFloat16 ? GradientAs<__nv_bfloat16>(scored, factors, stream)
                                              : GradientAs<float>(scored, factors, stream);
}

}  // namespace ccs::kernels::cuda
