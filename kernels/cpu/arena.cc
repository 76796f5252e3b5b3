#include "kernels/cpu/arena.h"

#include <sys/mman.h>

#include <new>

namespace ccs::kernels {
namespace {

constexpr uintptr_t kCacheLine = 64;
constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

uintptr_t RoundUp(uintptr_t value, uintptr_t unit) { return (value + unit - 1) / unit * unit; }

// Sampled rows lie far apart; large pages spare their address translation. Only advice: errors do not matter.
void AdviseHugePages(uintptr_t first, uintptr_t bytes) {
  const uintptr_t begin = RoundUp(first, kHugePage);
  const uintptr_t end = (first + bytes) / kHugePage * kHugePage;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

void* Arena::TakeBytes(int64_t bytes) {
  bytes_ += bytes;
  if (mode_ == Mode::kCount || bytes == 0) return nullptr;
  blocks_.emplace_back(std::calloc(static_cast<size_t>(bytes) + kCacheLine, 1));
  if (blocks_.back() == nullptr) throw std::bad_alloc();
  const uintptr_t first = RoundUp(reinterpret_cast<uintptr_t>(blocks_.back().get()), kCacheLine);
  AdviseHugePages(first, static_cast<uintptr_t>(bytes));
  return reinterpret_cast<void*>(first);
}

}  // namespace ccs::kernels
