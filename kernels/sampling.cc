#include "kernels/sampling.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/random.h"

namespace ccs::kernels {
namespace {

int64_t NumSample(int64_t num_local, double sample_rate) {
  if (sample_rate >= 1.0) return num_local;
  return sample_rate > 0.0 ? static_cast<int64_t>(sample_rate * static_cast<double>(num_local)) : 0;
}

// Uniform integers from one stream of the sampling domain, two for each Philox block.
class UniformStream {
 public:
  UniformStream(uint64_t seed, int64_t step, int rank)
      : seed_(seed), step_(static_cast<uint64_t>(step)), rank_(static_cast<uint32_t>(rank)) {}

  // In [0, bound]; the bias of the multiplication is below bound / 2^64.
  int64_t UpTo(int64_t bound) {
    if (next_ % 2 == 0) block_ = RandomAt(seed_, RandomDomain::kSampling, step_, rank_, next_ / 2);
    const uint32_t* words = &block_[2 * (next_ % 2)];
    ++next_;
    const uint64_t word = (uint64_t{words[0]} << 32) | words[1];
    return static_cast<int64_t>((static_cast<unsigned __int128>(word) * (static_cast<uint64_t>(bound) + 1)) >>
                                64);
  }

 private:
  uint64_t seed_;
  uint64_t step_;
  uint32_t rank_;
  uint32_t next_ = 0;
  RandomBlock block_{};
};

// Floyd's algorithm: `count` distinct values of [0, population) into *values and as bits into *drawn.
void DrawDistinct(int64_t population, int64_t count, UniformStream* random, std::vector<uint64_t>* drawn,
                  std::vector<int64_t>* values) {
  values->clear();
  for (int64_t last = population - count; last < population; ++last) {
    int64_t value = random->UpTo(last);
    if ((*drawn)[value / 64] >> (value % 64) & 1) value = last;
    (*drawn)[value / 64] |= uint64_t{1} << (value % 64);
    values->push_back(value);
  }
}

// Sorts *values and clears their bits. Reading the bitmap in order sorts in linear time unless it is
// nearly empty.
void SortAndClear(int64_t population, std::vector<uint64_t>* drawn, std::vector<int64_t>* values) {
  const int64_t words = (population + 63) / 64;
  if (words / 8 > static_cast<int64_t>(values->size())) {
    for (int64_t value : *values) (*drawn)[value / 64] = 0;
    std::sort(values->begin(), values->end());
    return;
  }
  values->clear();
  for (int64_t word = 0; word < words; ++word) {
    for (uint64_t bits = (*drawn)[word]; bits != 0; bits &= bits - 1) {
      values->push_back(word * 64 + std::countr_zero(bits));
    }
    (*drawn)[word] = 0;
  }
}

}  // namespace

Sampler::Sampler(int64_t num_local, double sample_rate, uint64_t seed, int rank)
    : num_local_(num_local), num_sample_(NumSample(num_local, sample_rate)), seed_(seed), rank_(rank) {
  rows_.reserve(num_sample_);
  if (num_sample_ == num_local_) {
    rows_.resize(num_local_);
    std::iota(rows_.begin(), rows_.end(), int64_t{0});
  } else {
    drawn_.resize((num_local_ + 63) / 64);
    ordinals_.reserve(num_sample_);
  }
}

absl::Span<const int64_t> Sampler::Draw(int64_t step, absl::Span<const int64_t> positives) {
  const auto num_positives = static_cast<int64_t>(positives.size());
  if (num_sample_ == num_local_) return rows_;
  if (num_positives >= num_sample_) {
    rows_.assign(positives.begin(), positives.end());
    return rows_;
  }
  const int64_t negatives = num_local_ - num_positives;
  UniformStream random(seed_, step, rank_);
  DrawDistinct(negatives, num_sample_ - num_positives, &random, &drawn_, &ordinals_);
  SortAndClear(negatives, &drawn_, &ordinals_);
  // The o-th negative is row o plus the positives up to it.
  rows_.clear();
  int64_t passed = 0;
  for (int64_t ordinal : ordinals_) {
    while (passed < num_positives && positives[passed] <= ordinal + passed)
      rows_.push_back(positives[passed++]);
    rows_.push_back(ordinal + passed);
  }
  rows_.insert(rows_.end(), positives.begin() + passed, positives.end());
  return rows_;
}

std::vector<int64_t> LocalPositives(absl::Span<const int64_t> labels, int64_t class_start,
                                    int64_t num_local) {
  std::vector<int64_t> rows;
  for (int64_t label : labels) {
    if (label >= class_start && label - class_start < num_local) rows.push_back(label - class_start);
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

}  // namespace ccs::kernels
