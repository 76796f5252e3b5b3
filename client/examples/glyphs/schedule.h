// What a training step does, as a pure function of its number: rates, margin, samples. Steps count from 1.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_SCHEDULE_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace glyphs {

// Epochs of whole batches; the samples left over after the last one wait for the next epoch's order.
class Schedule {
 public:
  // At least one batch: num_samples >= batch.
  Schedule(int64_t num_samples, int64_t batch, int64_t epochs);

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t num_steps() const { return steps_per_epoch_ * epochs_; }
  int64_t epoch(int64_t step) const { return (step - 1) / steps_per_epoch_ + 1; }

  // Multiplies the learning rates: linear warm-up over the first 100 steps (the first epoch if that is
  // shorter) times a cosine that reaches 0 after the last step.
  float RateFactor(int64_t step) const;
  // Multiplies the margin: rises from 0 to 1 over the first epoch.
  float MarginFactor(int64_t step) const;

 private:
  int64_t steps_per_epoch_;
  int64_t epochs_;
};

// The numbers 0..count-1 in an order that is a pure function of (seed, epoch).
std::vector<int64_t> ShuffledIndices(int64_t count, uint64_t seed, int64_t epoch);

// Which samples a step takes: every epoch has an order of its own, given by the seed. Not thread-safe.
class SampleOrder {
 public:
  SampleOrder(int64_t num_samples, int64_t batch, uint64_t seed);
  // Indices of the samples of a step, [batch]; valid until the next call.
  absl::Span<const int64_t> Batch(int64_t step);

 private:
  int64_t num_samples_;
  int64_t batch_;
  uint64_t seed_;
  int64_t epoch_ = 0;  // whose order order_ holds; 0 before the first
  std::vector<int64_t> order_;
};

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_SCHEDULE_H_
