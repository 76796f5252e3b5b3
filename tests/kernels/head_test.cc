#include "kernels/head.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ccs::kernels {
namespace {

TEST(HeadTest, NormfaceLeavesTheCosine) {
  EXPECT_EQ(ApplyMargin({}, 0.37).value, 0.37);
  EXPECT_EQ(ApplyMargin({}, 0.37).slope, 1.0);
}

TEST(HeadTest, CosfaceTakesTheMarginOffTheCosine) {
  const Margin margin{.m3 = 0.5f};
  EXPECT_DOUBLE_EQ(ApplyMargin(margin, 0.37).value, -0.13);
  EXPECT_EQ(ApplyMargin(margin, 0.37).slope, 1.0);
  EXPECT_FALSE(margin.needs_arccos());
}

TEST(HeadTest, ArcfaceAddsTheMarginToTheAngle) {
  const Margin margin{.m2 = 0.5f};
  EXPECT_NEAR(ApplyMargin(margin, 0.0).value, std::cos(std::acos(0.0) + 0.5), 1e-15);
  EXPECT_TRUE(margin.needs_arccos());
}

TEST(HeadTest, CombinedMarginMultipliesAddsAndSubtracts) {
  const Margin margin{1.25f, 0.25f, 0.125f};
  EXPECT_NEAR(ApplyMargin(margin, 0.3).value, std::cos(1.25 * std::acos(0.3) + 0.25) - 0.125, 1e-15);
}

TEST(HeadTest, SlopeIsTheDerivative) {
  constexpr double kStep = 1e-6;
  for (const Margin& margin :
       {Margin{}, Margin{.m3 = 0.4f}, Margin{.m2 = 0.5f}, Margin{1.25f, 0.25f, 0.125f}}) {
    for (double cosine : {-0.95, -0.3, 0.0, 0.4, 0.9, 0.99}) {
      const double difference =
          (ApplyMargin(margin, cosine + kStep).value - ApplyMargin(margin, cosine - kStep).value) /
          (2 * kStep);
      EXPECT_NEAR(ApplyMargin(margin, cosine).slope, difference, 1e-7 * std::max(1.0, std::abs(difference)));
    }
  }
}

TEST(HeadTest, CosinesBeyondOneByRoundingAreClamped) {
  const Margin margin{.m2 = 0.5f};
  EXPECT_EQ(ApplyMargin(margin, 1.0 + 1e-7).value, ApplyMargin(margin, 1.0).value);
  EXPECT_EQ(ApplyMargin(margin, -1.0 - 1e-7).value, ApplyMargin(margin, -1.0).value);
}

TEST(HeadTest, SlopeStaysFiniteAtTheEnds) {
  EXPECT_NEAR(ApplyMargin({.m2 = 0.5f}, 1.0).slope, std::sin(0.5) / 1e-4, 1e-6);
}

}  // namespace
}  // namespace ccs::kernels
