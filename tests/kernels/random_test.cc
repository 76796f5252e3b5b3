#include "kernels/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace ccs::kernels {
namespace {

// Known answers published with the generator (Random123's kat_vectors, philox4x32-10).
TEST(PhiloxTest, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox(0, {0, 0, 0, 0}), (RandomBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (RandomBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomTest, DomainsAndStreamsDiffer) {
  const RandomBlock block = RandomAt(1, RandomDomain::kSampling, 2, 3, 4);
  EXPECT_NE(block, RandomAt(1, RandomDomain::kInitialWeights, 2, 3, 4));
  EXPECT_NE(block, RandomAt(9, RandomDomain::kSampling, 2, 3, 4));
  EXPECT_NE(block, RandomAt(1, RandomDomain::kSampling, 9, 3, 4));
  EXPECT_NE(block, RandomAt(1, RandomDomain::kSampling, 2, 9, 4));
  EXPECT_NE(block, RandomAt(1, RandomDomain::kSampling, 2, 3, 9));
}

TEST(InitialCentreTest, HasTheMomentsOfANormalDistribution) {
  constexpr int kDim = 64;
  constexpr int kClasses = 4000;
  double sum = 0, square = 0, cube = 0, fourth = 0;
  std::vector<float> row(kDim);
  for (int64_t id = 0; id < kClasses; ++id) {
    InitialCentre(5, id, kDim, row.data());
    for (float value : row) {
      const double z = value / 0.01;
      sum += z, square += z * z, cube += z * z * z, fourth += z * z * z * z;
    }
  }
  // Five standard errors of each moment.
  const double count = kDim * kClasses;
  EXPECT_NEAR(sum / count, 0, 5 / std::sqrt(count));
  EXPECT_NEAR(square / count, 1, 5 * std::sqrt(2 / count));
  EXPECT_NEAR(cube / count, 0, 5 * std::sqrt(15 / count));
  EXPECT_NEAR(fourth / count, 3, 5 * std::sqrt(96 / count));
}

TEST(InitialCentreTest, NeighbouringClassesAndColumnsAreUncorrelated) {
  constexpr int kDim = 512;
  std::vector<float> row(kDim), next(kDim);
  double across_classes = 0, across_columns = 0;
  for (int64_t id = 0; id < 400; ++id) {
    InitialCentre(5, id, kDim, row.data());
    InitialCentre(5, id + 1, kDim, next.data());
    for (int d = 0; d < kDim; ++d) {
      across_classes += row[d] * next[d] / 1e-4;
      across_columns += row[d] * row[(d + 1) % kDim] / 1e-4;
    }
  }
  EXPECT_LT(std::abs(across_classes), 5 * std::sqrt(400.0 * kDim));
  EXPECT_LT(std::abs(across_columns), 5 * std::sqrt(400.0 * kDim));
}

TEST(InitialCentreTest, IsAPureFunctionOfSeedAndClass) {
  std::vector<float> row(7), again(7), other_seed(7), other_class(7);
  InitialCentre(1, int64_t{1} << 40, 7, row.data());
  InitialCentre(1, int64_t{1} << 40, 7, again.data());
  InitialCentre(2, int64_t{1} << 40, 7, other_seed.data());
  InitialCentre(1, (int64_t{1} << 40) + 1, 7, other_class.data());
  EXPECT_EQ(row, again);
  EXPECT_NE(row, other_seed);
  EXPECT_NE(row, other_class);
}

}  // namespace
}  // namespace ccs::kernels
