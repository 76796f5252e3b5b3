// The emulated GPU as tests see it: what it claims to be, and faults on demand. One of it, shared by all
// threads.
#ifndef CCS_TESTS_KERNELS_CUDA_EMULATION_DEVICE_H_
#define CCS_TESTS_KERNELS_CUDA_EMULATION_DEVICE_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "tests/kernels/cuda/emulation/block.h"

namespace ccs::emulation {

struct Device {
  int count = 1;  // of devices
  int major = 9;
  int l2_bytes = 1 << 16;  // so small that tiles have 128 columns
  int64_t memory_bytes = int64_t{4} << 30;
  std::optional<Order> order;  // of every kernel; else they take turns
  // The call that fails, counted from 0 over those that can: 0 is the next one, -1 none.
  int64_t failing_call = -1;
};

// Faults met since are in failing_call, which counts down.
Device& TheDevice();

// Whether the call that asks is the one to fail.
bool FailsNow();

// Queues work on a stream.
void Enqueue(cudaStream_t stream, std::function<void()> work);

// Whether [block, block + bytes) is device memory.
bool IsDeviceMemory(const void* block, size_t bytes);

}  // namespace ccs::emulation

#endif  // CCS_TESTS_KERNELS_CUDA_EMULATION_DEVICE_H_
