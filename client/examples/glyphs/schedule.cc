#include "client/examples/glyphs/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "client/examples/glyphs/random.h"

namespace glyphs {
namespace {

constexpr int64_t kWarmUpSteps = 100;
constexpr double kPi = 3.14159265358979323846;

}  // namespace

Schedule::Schedule(int64_t num_samples, int64_t batch, int64_t epochs)
    : steps_per_epoch_(num_samples / batch), epochs_(epochs) {}

float Schedule::RateFactor(int64_t step) const {
  const int64_t warm_up = std::min(kWarmUpSteps, steps_per_epoch_);
  const double rise = std::min(1.0, static_cast<double>(step) / static_cast<double>(warm_up));
  const double done = static_cast<double>(step - 1) / static_cast<double>(num_steps());
  return static_cast<float>(rise * 0.5 * (1 + std::cos(kPi * done)));
}

float Schedule::MarginFactor(int64_t step) const {
  return std::min(1.0f, static_cast<float>(step - 1) / static_cast<float>(steps_per_epoch_));
}

std::vector<int64_t> ShuffledIndices(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  Random({seed, kOrderStream, static_cast<uint64_t>(epoch)}).Shuffle(indices);
  return indices;
}

SampleOrder::SampleOrder(int64_t num_samples, int64_t batch, uint64_t seed)
    : num_samples_(num_samples), batch_(batch), seed_(seed) {}

absl::Span<const int64_t> SampleOrder::Batch(int64_t step) {
  const int64_t steps_per_epoch = num_samples_ / batch_;
  const int64_t epoch = (step - 1) / steps_per_epoch + 1;
  if (epoch != epoch_) {
    order_ = ShuffledIndices(num_samples_, seed_, epoch);
    epoch_ = epoch;
  }
  const int64_t first = (step - 1) % steps_per_epoch * batch_;
  return absl::MakeConstSpan(order_).subspan(static_cast<size_t>(first), static_cast<size_t>(batch_));
}

}  // namespace glyphs
