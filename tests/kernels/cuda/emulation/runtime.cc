#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "cuda_runtime_api.h"
#include "tests/kernels/cuda/emulation/device.h"

struct EmulatedStream {
  std::deque<std::function<void()>> work;
  void RunOne() {
    const std::function<void()> first = std::move(work.front());
    work.pop_front();
    first();
  }
};

struct EmulatedEvent {
  EmulatedStream* stream = nullptr;  // where it was recorded and has not come up yet
};

namespace ccs::emulation {
namespace {

constexpr size_t kFilled = 1 << 20;  // of a new block

// Blocks of one kind by address.
class Blocks {
 public:
  cudaError_t Allocate(void** block, size_t bytes, int64_t limit) {
    const std::lock_guard lock(mutex_);
    if (FailsNow() || total_ + static_cast<int64_t>(bytes) > limit) return cudaErrorMemoryAllocation;
    if (posix_memalign(block, 256, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*block, 0xff, std::min(bytes, kFilled));
    sizes_[static_cast<char*>(*block)] = bytes;
    total_ += static_cast<int64_t>(bytes);
    return cudaSuccess;
  }
  cudaError_t Free(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(static_cast<char*>(block));
    if (found == sizes_.end()) return cudaErrorInvalidValue;
    total_ -= static_cast<int64_t>(found->second);
    sizes_.erase(found);
    std::free(block);
    return cudaSuccess;
  }
  bool Hold(const void* first, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const char* begin = static_cast<const char*>(first);
    auto after = sizes_.upper_bound(const_cast<char*>(begin));
    if (after == sizes_.begin()) return false;
    --after;
    return begin + bytes <= after->first + after->second;
  }
  int64_t total() {
    const std::lock_guard lock(mutex_);
    return total_;
  }

 private:
  std::mutex mutex_;
  std::map<char*, size_t> sizes_;
  int64_t total_ = 0;
};

Blocks& DeviceBlocks() {
  static Blocks blocks;
  return blocks;
}

Blocks& PinnedBlocks() {
  static Blocks blocks;
  return blocks;
}

Order NextOrder() {
  static unsigned launches = 0;
  return TheDevice().order.value_or(static_cast<Order>(launches++ % 3));
}

}  // namespace

Device& TheDevice() {
  static Device device;
  return device;
}

bool FailsNow() {
  int64_t& left = TheDevice().failing_call;
  return left >= 0 && left-- == 0;
}

void Enqueue(cudaStream_t stream, std::function<void()> work) { stream->work.push_back(std::move(work)); }

bool IsDeviceMemory(const void* block, size_t bytes) { return DeviceBlocks().Hold(block, bytes); }

cudaError_t Launch(unsigned blocks, unsigned threads, cudaStream_t stream, std::function<void()> body) {
  if (FailsNow()) return cudaErrorLaunchFailure;
  if (blocks == 0 || threads == 0 || threads % 32 != 0 || threads > 1024)
    return cudaErrorInvalidConfiguration;
  Enqueue(stream, [blocks, threads, order = NextOrder(), body = std::move(body)] {
    RunGrid(blocks, threads, order, body);
  });
  return cudaSuccess;
}

}  // namespace ccs::emulation

using ccs::emulation::DeviceBlocks;
using ccs::emulation::FailsNow;
using ccs::emulation::PinnedBlocks;
using ccs::emulation::TheDevice;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
  }
  return "unknown error";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = TheDevice().count;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= TheDevice().count) return cudaErrorInvalidDevice;
  *properties = {"emulated", TheDevice().major, 0, TheDevice().l2_bytes};
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < TheDevice().count ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = static_cast<size_t>(TheDevice().memory_bytes);
  *free = static_cast<size_t>(TheDevice().memory_bytes - DeviceBlocks().total());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** block, size_t bytes) {
  return DeviceBlocks().Allocate(block, bytes, TheDevice().memory_bytes);
}
cudaError_t cudaFree(void* block) { return DeviceBlocks().Free(block); }
cudaError_t cudaHostAlloc(void** block, size_t bytes, unsigned /*flags*/) {
  return PinnedBlocks().Allocate(block, bytes, INT64_MAX);
}
cudaError_t cudaFreeHost(void* block) { return PinnedBlocks().Free(block); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  if (FailsNow()) return cudaErrorInvalidValue;
  *stream = new EmulatedStream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (FailsNow() || stream == nullptr) return cudaErrorLaunchFailure;
  while (!stream->work.empty()) stream->RunOne();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  if (FailsNow()) return cudaErrorInvalidValue;
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (FailsNow()) return cudaErrorLaunchFailure;
  event->stream = stream;
  stream->work.emplace_back([event] { event->stream = nullptr; });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (FailsNow()) return cudaErrorLaunchFailure;
  while (event->stream != nullptr) event->stream->RunOne();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (FailsNow()) return cudaErrorLaunchFailure;
  const bool to_device = kind == cudaMemcpyHostToDevice;
  if (!DeviceBlocks().Hold(to_device ? to : from, bytes) ||
      !PinnedBlocks().Hold(to_device ? from : to, bytes)) {
    return cudaErrorInvalidValue;
  }
  stream->work.emplace_back([to, from, bytes] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* block, int value, size_t bytes, cudaStream_t stream) {
  if (FailsNow()) return cudaErrorLaunchFailure;
  if (!DeviceBlocks().Hold(block, bytes)) return cudaErrorInvalidValue;
  stream->work.emplace_back([block, value, bytes] { std::memset(block, value, bytes); });
  return cudaSuccess;
}
