#include "kernels/cuda/memory.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ccs::kernels::cuda {
namespace {

constexpr int64_t kHalfBytes = int64_t{4} << 20;

}  // namespace

Memory::~Memory() {
  for (void* block : blocks_) kind_ == MemoryKind::kDevice ? cudaFree(block) : cudaFreeHost(block);
}

void* Memory::TakeBytes(int64_t bytes) {
  bytes_ += bytes;
  if (kind_ == MemoryKind::kCounted || bytes == 0 || !status_.ok()) return nullptr;
  void* block = nullptr;
  const cudaError_t error = kind_ == MemoryKind::kDevice
                                ? cudaMalloc(&block, static_cast<size_t>(bytes))
                                : cudaHostAlloc(&block, static_cast<size_t>(bytes), cudaHostAllocDefault);
  status_ = ToStatus(error, absl::StrCat("allocate ", bytes, " bytes"));
  if (!status_.ok()) return nullptr;
  blocks_.push_back(block);
  return block;
}

Staging::Staging(Stream* stream, Memory* pinned) : stream_(stream) {
  for (Half& half : halves_) {
    half.memory = pinned->Take<char>(kHalfBytes);
    stream_->Note(cudaEventCreateWithFlags(&half.done, cudaEventDisableTiming), "make an event");
  }
}

Staging::~Staging() {
  for (Half& half : halves_) {
    if (half.done != nullptr) cudaEventDestroy(half.done);
  }
}

void Staging::Wait(const Half& half) { stream_->Note(cudaEventSynchronize(half.done), "copy memory"); }

void Staging::ToDevice(const void* host, int64_t bytes, void* device) {
  for (int64_t at = 0, piece = 0; at < bytes; at += kHalfBytes, ++piece) {
    const Half& half = halves_[piece % 2];
    const int64_t size = std::min(kHalfBytes, bytes - at);
    Wait(half);
    std::memcpy(half.memory, static_cast<const char*>(host) + at, size);
    stream_->CopyToDevice(half.memory, size, static_cast<char*>(device) + at);
    stream_->Note(cudaEventRecord(half.done, stream_->get()), "copy memory");
  }
}

void Staging::ToHost(const void* device, int64_t bytes, void* host) {
  const int64_t pieces = (bytes + kHalfBytes - 1) / kHalfBytes;
  const auto size_of = [bytes](int64_t piece) { return std::min(kHalfBytes, bytes - piece * kHalfBytes); };
  for (int64_t piece = 0; piece <= pieces; ++piece) {
    if (piece < pieces) {  // the next one leaves while the one before is copied out
      const Half& half = halves_[piece % 2];
      Wait(half);
      stream_->CopyToHost(static_cast<const char*>(device) + piece * kHalfBytes, size_of(piece), half.memory);
      stream_->Note(cudaEventRecord(half.done, stream_->get()), "copy memory");
    }
    if (piece > 0) {
      const Half& half = halves_[(piece - 1) % 2];
      Wait(half);
      std::memcpy(static_cast<char*>(host) + (piece - 1) * kHalfBytes, half.memory, size_of(piece - 1));
    }
  }
}

}  // namespace ccs::kernels::cuda
