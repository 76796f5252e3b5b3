// Which rows of a shard take part in a step. Host code, the same for every device.
#ifndef CCS_KERNELS_SAMPLING_H_
#define CCS_KERNELS_SAMPLING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ccs::kernels {

// Draws the sampled rows of one shard. Not thread-safe; one object per shard, reused every step so that
// its workspace is allocated once.
class Sampler {
 public:
  // A shard of `num_local` rows; `sample_rate` in [0, 1] and above (1 and more: every row).
  Sampler(int64_t num_local, double sample_rate, uint64_t seed, int rank);

  // `positives`: local rows in [0, num_local) that are some label's class, sorted, without repeats.
  // Returns the sampled local rows, sorted: with num_sample = (int64)(sample_rate * num_local), the
  // positives alone if there are num_sample of them or more, else the positives and uniform negatives
  // without replacement, num_sample in all. A pure function of (seed, step, rank, positives); expected
  // cost O(num_sample). The span lives until the next call.
  absl::Span<const int64_t> Draw(int64_t step, absl::Span<const int64_t> positives);

  int64_t num_sample() const { return num_sample_; }

 private:
  int64_t num_local_;
  int64_t num_sample_;
  uint64_t seed_;
  int rank_;
  std::vector<uint64_t> drawn_;  // bitmap over the ordinals of negatives, clear between calls
  std::vector<int64_t> ordinals_;
  std::vector<int64_t> rows_;
};

// Distinct local rows of the labels in [class_start, class_start + num_local), sorted.
std::vector<int64_t> LocalPositives(absl::Span<const int64_t> labels, int64_t class_start, int64_t num_local);

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_SAMPLING_H_
