// The batch: unit features, own cosines, the gradient with respect to the features. One warp a row.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"

namespace ccs::kernels::cuda {
namespace {

template <int kWidth>
__global__ void PrepareFeaturesKernel(Batch batch, bool normalise, __nv_bfloat16* factors, int stride) {
  const int64_t row = WarpInGrid();
  if (row >= batch.rows) return;
  float* features = batch.features + row * batch.dim;
  const double norm = sqrt(WarpDot<kWidth>(features, features, batch.dim));
  if (Lane() == 0) batch.norms[row] = norm;
  const float factor = normalise ? static_cast<float>(1.0 / fmax(norm, kMinNorm)) : 1.0f;
  ForLaneValues<kWidth>(batch.dim, [&](int d) {
    auto x = Load<kWidth>(features + d);
    for (int i = 0; i < kWidth; ++i) x.values[i] *= factor;
    Store<kWidth>(x, features + d);
    if (factors == nullptr) return;
    Pack<__nv_bfloat16, kWidth> rounded;
    for (int i = 0; i < kWidth; ++i) rounded.values[i] = FromFloat<__nv_bfloat16>(x.values[i]);
    Store<kWidth>(rounded, factors + row * stride + d);
  });
}

template <int kWidth>
__global__ void TargetCosinesKernel(Batch batch, Rows rows, const int64_t* targets, double* cosines) {
  const int64_t row = WarpInGrid();
  if (row >= batch.rows || targets[row] < 0) return;
  const double cosine =
      WarpCosine<kWidth>(batch.features + row * batch.dim, rows.weight + targets[row] * batch.dim, batch.dim);
  if (Lane() == 0) cosines[row] = cosine;
}

template <int kWidth>
__global__ void ScaleNumeratorKernel(Batch batch, Rows rows, const int64_t* targets,
                                     const RowFactors* factors, float* numerator) {
  const int64_t row = WarpInGrid();
  if (row >= batch.rows) return;
  float* gradient = numerator + row * batch.dim;
  const float factor = factors[row].numerator;
  const float* weight = nullptr;
  float weight_factor = 0;
  if (targets[row] >= 0) {
    weight = rows.weight + targets[row] * batch.dim;
    const double norm = sqrt(WarpDot<kWidth>(weight, weight, batch.dim));
    weight_factor = static_cast<float>(factors[row].target / fmax(norm, kMinNorm));
  }
  ForLaneValues<kWidth>(batch.dim, [&](int d) {
    auto g = Load<kWidth>(gradient + d);
    for (int i = 0; i < kWidth; ++i) g.values[i] *= factor;
    if (weight != nullptr) {
      const auto w = Load<kWidth>(weight + d);
      for (int i = 0; i < kWidth; ++i) g.values[i] = fmaf(weight_factor, w.values[i], g.values[i]);
    }
    Store<kWidth>(g, gradient + d);
  });
}

template <int kWidth>
__global__ void FinishGradientKernel(Batch batch, int first_row, int num_rows, float* gradients) {
  const int64_t row = WarpInGrid();
  if (row >= num_rows) return;
  float* gradient = gradients + row * batch.dim;
  const float* unit = batch.features + (first_row + row) * batch.dim;
  const double norm = batch.norms[first_row + row];
  const auto radial = static_cast<float>(-WarpDot<kWidth>(gradient, unit, batch.dim));
  const float factor = norm > kMinNorm ? static_cast<float>(1.0 / norm) : 0.0f;
  ForLaneValues<kWidth>(batch.dim, [&](int d) {
    auto g = Load<kWidth>(gradient + d);
    const auto x = Load<kWidth>(unit + d);
    for (int i = 0; i < kWidth; ++i) g.values[i] = fmaf(radial, x.values[i], g.values[i]) * factor;
    Store<kWidth>(g, gradient + d);
  });
}

// One warp for each of `rows` rows.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchRows(void (*kernel)(Parameters...), int rows, cudaStream_t stream,
                       Arguments&&... arguments) {
  return Launch(kernel, BlocksFor(rows, kBlockWarps), kBlockThreads, stream,
                std::forward<Arguments>(arguments)...);
}

}  // namespace

cudaError_t PrepareFeatures(const Batch& batch, bool normalise, void* factors, int stride,
                            cudaStream_t stream) {
  return LaunchRows(IsWide(batch.dim) ? PrepareFeaturesKernel<4> : PrepareFeaturesKernel<1>, batch.rows,
                    stream, batch, normalise, static_cast<__nv_bfloat16*>(factors), stride);
}

cudaError_t TargetCosines(const Batch& batch, const Rows& rows, const int64_t* targets, double* cosines,
                          cudaStream_t stream) {
  return LaunchRows(IsWide(batch.dim) ? TargetCosinesKernel<4> : TargetCosinesKernel<1>, batch.rows, stream,
                    batch, rows, targets, cosines);
}

cudaError_t ScaleNumerator(const Batch& batch, const Rows& rows, const int64_t* targets,
                           const RowFactors* factors, float* numerator, cudaStream_t stream) {
  return LaunchRows(IsWide(batch.dim) ? ScaleNumeratorKernel<4> : ScaleNumeratorKernel<1>, batch.rows, stream,
                    batch, rows, targets, factors, numerator);
}

cudaError_t FinishGradient(const Batch& batch, int first_row, int num_rows, float* gradient,
                           cudaStream_t stream) {
  return LaunchRows(IsWide(batch.dim) ? FinishGradientKernel<4> : FinishGradientKernel<1>, num_rows, stream,
                    batch, first_row, num_rows, gradient);
}

}  // namespace ccs::kernels::cuda
