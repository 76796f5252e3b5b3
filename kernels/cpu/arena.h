// Memory of one owner, counted.
#ifndef CCS_KERNELS_CPU_ARENA_H_
#define CCS_KERNELS_CPU_ARENA_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace ccs::kernels {

// Hands out zeroed arrays and frees them all together. Pages are taken from the system when first touched.
// A counting arena allocates nothing and hands out null, to learn what a layout needs.
class Arena {
 public:
  enum class Mode { kCount, kAllocate };
  explicit Arena(Mode mode) : mode_(mode) {}

  // Aligned to a cache line. Throws std::bad_alloc.
  template <typename T>
  T* Take(int64_t count) {
    return static_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T))));
  }

  int64_t bytes() const { return bytes_; }

 private:
  void* TakeBytes(int64_t bytes);

  struct Free {
    void operator()(void* block) const { std::free(block); }
  };
  Mode mode_;
  int64_t bytes_ = 0;
  std::vector<std::unique_ptr<void, Free>> blocks_;
};

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CPU_ARENA_H_
