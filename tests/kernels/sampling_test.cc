#include "kernels/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace ccs::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int64_t> DrawOnce(int64_t num_local, double rate, uint64_t seed, int rank, int64_t step,
                              const std::vector<int64_t>& positives) {
  Sampler sampler(num_local, rate, seed, rank);
  const auto rows = sampler.Draw(step, positives);
  return {rows.begin(), rows.end()};
}

void ExpectSortedWithin(const std::vector<int64_t>& rows, int64_t num_local) {
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  EXPECT_EQ(std::adjacent_find(rows.begin(), rows.end()), rows.end());
  ASSERT_FALSE(rows.empty());
  EXPECT_GE(rows.front(), 0);
  EXPECT_LT(rows.back(), num_local);
}

TEST(SamplerTest, DrawsExactlyTheSampleWithEveryPositive) {
  const std::vector<int64_t> positives = {0, 1, 17, 500, 998, 999};
  for (double rate : {0.006, 0.007, 0.1, 0.5, 0.93, 0.999}) {
    const auto rows = DrawOnce(1000, rate, 3, 1, 42, positives);
    EXPECT_EQ(rows.size(), static_cast<size_t>(rate * 1000)) << rate;
    ExpectSortedWithin(rows, 1000);
    EXPECT_TRUE(std::includes(rows.begin(), rows.end(), positives.begin(), positives.end())) << rate;
  }
}

TEST(SamplerTest, SparseDrawsAreSortedToo) {
  const auto rows = DrawOnce(1'000'000, 2e-5, 3, 1, 42, {999'999});
  EXPECT_EQ(rows.size(), 20u);
  ExpectSortedWithin(rows, 1'000'000);
}

TEST(SamplerTest, SampleSizeIsTruncatedInDouble) {
  EXPECT_EQ(Sampler(1000, 0.0069, 0, 0).num_sample(), 6);
  EXPECT_EQ(Sampler(100, 0.29, 0, 0).num_sample(), static_cast<int64_t>(0.29 * 100));  // 28.999...
}

TEST(SamplerTest, PositivesBeyondTheSampleAreTheSample) {
  const std::vector<int64_t> positives = {2, 3, 5, 7, 11};
  EXPECT_EQ(DrawOnce(20, 0.2, 0, 0, 0, positives), positives);
  EXPECT_EQ(DrawOnce(20, 0.25, 0, 0, 0, positives), positives);
  EXPECT_EQ(DrawOnce(20, 0.3, 0, 0, 0, positives).size(), 6u);
}

TEST(SamplerTest, RateZeroDrawsPositivesOnly) {
  EXPECT_THAT(DrawOnce(20, 0, 0, 0, 0, {4, 9}), ElementsAre(4, 9));
  EXPECT_THAT(DrawOnce(20, 0, 0, 0, 0, {}), IsEmpty());
}

TEST(SamplerTest, RateOneAndMoreDrawsEveryRow) {
  std::vector<int64_t> all(9);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(DrawOnce(9, 1.0, 0, 0, 0, {3}), all);
  EXPECT_EQ(DrawOnce(9, 7.5, 0, 0, 0, {}), all);
}

TEST(SamplerTest, EmptyShardDrawsNothing) {
  EXPECT_THAT(DrawOnce(0, 0.5, 0, 0, 0, {}), IsEmpty());
  EXPECT_THAT(DrawOnce(0, 1, 0, 0, 0, {}), IsEmpty());
}

TEST(SamplerTest, IsAPureFunctionOfSeedStepRankAndPositives) {
  const std::vector<int64_t> positives = {5, 50};
  const auto rows = DrawOnce(1000, 0.1, 1, 2, 3, positives);
  Sampler used(1000, 0.1, 1, 2);
  used.Draw(1, {});
  used.Draw(9, positives);
  const auto again = used.Draw(3, positives);
  EXPECT_EQ(rows, std::vector<int64_t>(again.begin(), again.end()));
  EXPECT_NE(rows, DrawOnce(1000, 0.1, 9, 2, 3, positives));
  EXPECT_NE(rows, DrawOnce(1000, 0.1, 1, 9, 3, positives));
  EXPECT_NE(rows, DrawOnce(1000, 0.1, 1, 2, 9, positives));
  EXPECT_NE(rows, DrawOnce(1000, 0.1, 1, 2, 3 + (int64_t{1} << 32), positives));
}

// Chi-square against equal chances of all negatives: mean and deviation of the statistic are k and
// sqrt(2 k) for k degrees of freedom, a little less without replacement.
TEST(SamplerTest, NegativesAreUniform) {
  constexpr int64_t kLocal = 203;
  constexpr int kDraws = 4000;
  const std::vector<int64_t> positives = {0, 100, 202};
  Sampler sampler(kLocal, 0.25, 11, 0);
  std::vector<int> count(kLocal);
  for (int step = 0; step < kDraws; ++step) {
    for (int64_t row : sampler.Draw(step, positives)) ++count[row];
  }
  for (int64_t row : positives) EXPECT_EQ(count[row], kDraws);
  const double negatives = kLocal - 3;
  const double chance = (sampler.num_sample() - 3) / negatives;
  double chi_square = 0;
  for (int64_t row = 0; row < kLocal; ++row) {
    if (row == 0 || row == 100 || row == 202) continue;
    const double excess = count[row] - kDraws * chance;
    chi_square += excess * excess / (kDraws * chance * (1 - chance));
  }
  EXPECT_NEAR(chi_square, negatives, 5 * std::sqrt(2 * negatives));
}

TEST(SamplerTest, PairsOfNegativesAreUniform) {
  Sampler sampler(6, 0.5, 12, 0);
  std::map<std::vector<int64_t>, int> count;
  for (int step = 0; step < 20000; ++step) {
    const auto rows = sampler.Draw(step, {});
    ++count[{rows.begin(), rows.end()}];
  }
  EXPECT_EQ(count.size(), 20u);  // 3 of 6
  for (const auto& [rows, times] : count) EXPECT_NEAR(times, 1000, 5 * std::sqrt(950.0));
}

TEST(LocalPositivesTest, AreTheDistinctRowsOfTheRange) {
  EXPECT_THAT(LocalPositives({12, 10, -1, 19, 12, 20, 9, 15}, 10, 10), ElementsAre(0, 2, 5, 9));
  EXPECT_THAT(LocalPositives({12, 10}, 10, 0), IsEmpty());
  EXPECT_THAT(LocalPositives({-1, -1}, 0, 10), IsEmpty());
}

}  // namespace
}  // namespace ccs::kernels
