// What threads do together, and loads of several values at once. Sums and maxima combine in a fixed order, so
// that the same values give the same bits.
#ifndef CCS_KERNELS_CUDA_BLOCK_CUH_
#define CCS_KERNELS_CUDA_BLOCK_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace ccs::kernels::cuda {

constexpr int kWarpSize = 32;
constexpr int kBlockThreads = 128;
constexpr int kBlockWarps = kBlockThreads / kWarpSize;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
__device__ inline int Warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }
// One warp an item.
__device__ inline int64_t WarpInGrid() { return int64_t{blockIdx.x} * kBlockWarps + Warp(); }

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over the warp's lanes; the same bits in every lane.
template <typename Operation, typename T>
__device__ T WarpReduce(T value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = Operation()(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Over the block's threads, all of which must call; the same bits in every thread. What a thread wrote
// before, all see after.
template <typename Operation, typename T>
__device__ T BlockReduce(T value) {
  __shared__ T of_warp[kBlockWarps];
  value = WarpReduce<Operation>(value);
  __syncthreads();  // an earlier call's values have been read
  if (Lane() == 0) of_warp[Warp()] = value;
  __syncthreads();
  T result = of_warp[0];
  for (int warp = 1; warp < kBlockWarps; ++warp) result = Operation()(result, of_warp[warp]);
  return result;
}

// kWidth values next to each other, moved at once: the address must be a multiple of the size.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

template <int kWidth, typename T>
__device__ Pack<T, kWidth> Load(const T* from) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(from);
}

template <int kWidth, typename T>
__device__ void Store(const Pack<T, kWidth>& pack, T* to) {
  *reinterpret_cast<Pack<T, kWidth>*>(to) = pack;
}

template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// Calls visit(d) for every kWidth-th d of [0, dim) that is the lane's; dim is a multiple of kWidth.
template <int kWidth, typename Visit>
__device__ void ForLaneValues(int dim, const Visit& visit) {
  for (int d = Lane() * kWidth; d < dim; d += kWarpSize * kWidth) visit(d);
}

// Sums of exact products over a row, in double; the same bits in every lane.
template <int kWidth>
__device__ double WarpDot(const float* a, const float* b, int dim) {
  double sum = 0;
  ForLaneValues<kWidth>(dim, [&](int d) {
    const auto x = Load<kWidth>(a + d);
    const auto y = Load<kWidth>(b + d);
    for (int i = 0; i < kWidth; ++i) sum += static_cast<double>(x.values[i]) * y.values[i];
  });
  return WarpReduce<Sum>(sum);
}

// Of a batch row's features with a class centre.
template <int kWidth>
__device__ double WarpCosine(const float* features, const float* weight, int dim) {
  const double norm = sqrt(WarpDot<kWidth>(weight, weight, dim));
  return WarpDot<kWidth>(features, weight, dim) / fmax(norm, kMinNorm);
}

__device__ inline int64_t LocalRow(const Rows& rows, int64_t column) {
  return rows.sample == nullptr ? column : rows.sample[column];
}

// Rows of floats can be moved 16 bytes at a time.
inline bool IsWide(int dim) { return dim % 4 == 0; }

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_BLOCK_CUH_
