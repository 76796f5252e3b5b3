// What kernels/cuda calls of the CUDA runtime, on the host: the names and meanings are the runtime's. Work
// that is queued on a stream runs when something waits for it and not before, so that a missing wait shows.
// Copies must be between blocks from cudaMalloc and cudaHostAlloc. The first MiB of new
// memory is full of NaN.
#ifndef CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_API_H_
#define CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_API_H_

#include <cstddef>

enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorInvalidConfiguration,
  cudaErrorInvalidDevice,
  cudaErrorNoDevice,
  cudaErrorLaunchFailure,
};
const char* cudaGetErrorString(cudaError_t error);

struct cudaDeviceProp {
  char name[256];
  int major;
  int minor;
  int l2CacheSize;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);

cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** block, size_t bytes);
cudaError_t cudaFree(void* block);
enum { cudaHostAllocDefault = 0 };
cudaError_t cudaHostAlloc(void** block, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* block);

using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* block, int value, size_t bytes, cudaStream_t stream);

#endif  // CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_RUNTIME_API_H_
