// A queue of work on the device.
#ifndef CCS_KERNELS_CUDA_STREAM_H_
#define CCS_KERNELS_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "kernels/cuda/status.h"

namespace ccs::kernels::cuda {

// Owns a stream and the first error of what was queued since the last Finish. After an error later work may
// still be queued; its result counts for nothing.
//
//   stream.Note(GatherUnitRows(..., stream.get()), "gather rows");
//   stream.CopyToHost(device, bytes, host);
//   return stream.Finish();   // waits; the first error of all of it
//
// Not thread-safe. Host memory must be pinned, and left alone until Finish.
class Stream {
 public:
  // Check with Finish. The device must be the calling thread's.
  Stream() { Note(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "open a stream"); }
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

  // `error` came of queueing work that is to `what`.
  template <typename Error>
  void Note(Error error, const char* what) {
    Note(ToStatus(error, what));
  }
  void Note(const absl::Status& status) { status_.Update(status); }

  template <typename T>
  void CopyToDevice(const T* host, int64_t count, T* device) {
    Copy(host, count * sizeof(T), device, cudaMemcpyHostToDevice);
  }
  template <typename T>
  void CopyToHost(const T* device, int64_t count, T* host) {
    Copy(device, count * sizeof(T), host, cudaMemcpyDeviceToHost);
  }
  template <typename T>
  void Zero(T* device, int64_t count) {
    if (count > 0) Note(cudaMemsetAsync(device, 0, count * sizeof(T), stream_), "clear memory");
  }

  // Waits for all that was queued.
  absl::Status Finish() {
    Note(cudaStreamSynchronize(stream_), "finish its work");
    return std::exchange(status_, absl::OkStatus());
  }

 private:
  void Copy(const void* from, size_t bytes, void* to, cudaMemcpyKind kind) {
    if (bytes > 0) Note(cudaMemcpyAsync(to, from, bytes, kind, stream_), "copy memory");
  }

  cudaStream_t stream_ = nullptr;
  absl::Status status_;
};

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_STREAM_H_
