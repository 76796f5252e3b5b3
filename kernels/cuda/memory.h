// Memory of the device and pinned memory of the host, counted.
#ifndef CCS_KERNELS_CUDA_MEMORY_H_
#define CCS_KERNELS_CUDA_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/stream.h"

namespace ccs::kernels::cuda {

enum class MemoryKind { kCounted, kDevice, kPinned };

// Hands out arrays, uninitialised, and frees them all together. One of kind kCounted allocates nothing and
// hands out null, to learn what a layout needs. Once memory has run out every array is null and status() says
// so.
class Memory {
 public:
  explicit Memory(MemoryKind kind) : kind_(kind) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Aligned to 256 bytes; null if count is 0.
  template <typename T>
  T* Take(int64_t count) {
    return static_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T))));
  }

  int64_t bytes() const { return bytes_; }
  const absl::Status& status() const { return status_; }

 private:
  void* TakeBytes(int64_t bytes);

  MemoryKind kind_;
  int64_t bytes_ = 0;
  absl::Status status_;
  std::vector<void*> blocks_;
};

// Carries memory that is not pinned to the device and back, in pieces through two pinned halves, so that one
// half is filled or emptied while the other travels. Used by one thread at a time, on one stream.
class Staging {
 public:
  // Check with stream->Finish and the status of `pinned`, which owns the halves.
  Staging(Stream* stream, Memory* pinned);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Queued behind what is on the stream; `host` may be reused on return.
  void ToDevice(const void* host, int64_t bytes, void* device);
  // Returns when all of it is there, or with an error on the stream.
  void ToHost(const void* device, int64_t bytes, void* host);

 private:
  struct Half {
    char* memory = nullptr;
    cudaEvent_t done = nullptr;  // its last copy
  };
  void Wait(const Half& half);

  Stream* stream_;
  Half halves_[2];
};

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_MEMORY_H_
