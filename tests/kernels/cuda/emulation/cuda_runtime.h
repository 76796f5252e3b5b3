// The language of kernels as host C++: threads of a block are fibers, blocks run one after the other.
#ifndef CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
#define CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <tuple>

#include "tests/kernels/cuda/emulation/block.h"

// NOLINTBEGIN(bugprone-reserved-identifier): the names are the language's.
#define __global__
#define __device__
#define __shared__ static

struct dim3 {
  dim3(unsigned width = 1) : x(width) {}  // NOLINT(google-explicit-constructor): as there
  unsigned x;
  unsigned y = 1;
  unsigned z = 1;
};

extern ccs::emulation::Index threadIdx;
extern ccs::emulation::Index blockIdx;
extern dim3 gridDim;

inline void __syncthreads() { ccs::emulation::WaitForBlock(); }

// All lanes of a warp must take part, which is all that the kernels do.
inline void __syncwarp() { ccs::emulation::ExchangeInWarp(0); }

template <typename T>
T __shfl_xor_sync(unsigned /*lanes*/, T value, int distance) {
  uint64_t bits = 0;
  static_assert(sizeof(T) <= sizeof(bits));
  std::memcpy(&bits, &value, sizeof(T));
  const uint64_t* of_lanes = ccs::emulation::ExchangeInWarp(bits);
  std::memcpy(&value, &of_lanes[threadIdx.x % 32 ^ static_cast<unsigned>(distance)], sizeof(T));
  return value;
}

inline unsigned __ballot_sync(unsigned /*lanes*/, bool vote) {
  const uint64_t* of_lanes = ccs::emulation::ExchangeInWarp(vote ? 1 : 0);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) ballot |= static_cast<unsigned>(of_lanes[lane]) << lane;
  return ballot;
}

inline int __ffs(int value) { return __builtin_ffs(value); }
// NOLINTEND(bugprone-reserved-identifier)

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> values(arguments...);
  return ccs::emulation::Launch(config->gridDim.x, config->blockDim.x, config->stream,
                                [kernel, values] { std::apply(kernel, values); });
}

#endif  // CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_H_
