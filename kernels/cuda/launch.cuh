// How kernels are started: checked, and not at all over nothing.
#ifndef CCS_KERNELS_CUDA_LAUNCH_CUH_
#define CCS_KERNELS_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace ccs::kernels::cuda {

inline int64_t BlocksFor(int64_t items, int items_in_block) {
  return (items + items_in_block - 1) / items_in_block;
}

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), int64_t blocks, int threads, cudaStream_t stream,
                   Arguments&&... arguments) {
  if (blocks == 0) return cudaSuccess;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_LAUNCH_CUH_
