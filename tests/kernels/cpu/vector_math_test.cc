// Every function over lengths around the vector width, against plain double code.
#include "kernels/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace ccs::kernels {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kGuard = 12345.0f;

class VectorMathTest : public ::testing::TestWithParam<int> {
 protected:
  // `length` values and a guard behind them.
  std::vector<float> Random() {
    std::normal_distribution<float> normal;
    std::vector<float> values(GetParam());
    for (float& value : values) value = normal(random_);
    values.push_back(kGuard);
    return values;
  }
  std::mt19937_64 random_{1};
};

TEST_P(VectorMathTest, DotScaleAndAdd) {
  const int n = GetParam();
  const std::vector<float> a = Random();
  std::vector<float> b = Random();
  const std::vector<float> b_before = b;
  double dot = 0;
  for (int i = 0; i < n; ++i) dot += static_cast<double>(a[i]) * b[i];
  EXPECT_NEAR(Dot(a.data(), b.data(), n), dot, 1e-14 * n);
  AddScaled(a.data(), 0.5f, n, b.data());
  for (int i = 0; i < n; ++i) EXPECT_FLOAT_EQ(b[i], b_before[i] + 0.5f * a[i]);
  Scale(a.data(), -3.0f, n, b.data());
  for (int i = 0; i < n; ++i) EXPECT_EQ(b[i], -3.0f * a[i]);
  EXPECT_EQ(b[n], kGuard);
}

TEST_P(VectorMathTest, MaxOfFindsTheLargestWhereverItIs) {
  const int n = GetParam();
  std::vector<float> a(n + 1, -2.0f);
  a[n] = kGuard;
  EXPECT_EQ(MaxOf(a.data(), n), n > 0 ? -2.0f : kNone);
  for (int i = 0; i < n; ++i) {
    a[i] = -1.0f;
    EXPECT_EQ(MaxOf(a.data(), n), -1.0f);
    a[i] = -2.0f;
  }
}

TEST_P(VectorMathTest, SoftmaxOverTwoTilesWithAFilterAndATakenOutColumn) {
  const int n = GetParam();
  const LogitRule rule{8.0f, 1.0f};
  RunningSoftmax running;
  double sum = 0;
  for (int tile = 0; tile < 2; ++tile) {
    std::vector<float> cosines = Random();
    if (n > 2) cosines[2] = kNone;
    std::vector<float> weights(n + 1, kGuard);
    const TileWeights result = AddToSoftmax(cosines.data(), n, rule, &running, weights.data());
    float largest = 0;
    for (int i = 0; i < n; ++i) {
      const double z = cosines[i] > 1 ? 0 : 8.0 * cosines[i];
      sum += std::exp(z);
      const double weight = cosines[i] > 1 ? 0 : std::exp(z - running.max);
      EXPECT_NEAR(weights[i], weight, 1e-6 * weight + 1e-37);
      largest = std::max(largest, weights[i]);
    }
    EXPECT_EQ(result.largest, largest);
    EXPECT_LE(result.rescale, 1.0f);
    EXPECT_EQ(weights[n], kGuard);
  }
  EXPECT_NEAR(running.exp_sum > 0 ? running.exp_sum * std::exp(static_cast<double>(running.max)) : 0, sum,
              2e-6 * sum);
}

TEST_P(VectorMathTest, ExpScaledGivesGradients) {
  const int n = GetParam();
  const std::vector<float> cosines = Random();
  std::vector<float> out(n + 1, kGuard);
  ExpScaled(cosines.data(), n, {2.0f, 1.5f}, 3.0f, 0.25f, out.data());
  for (int i = 0; i < n; ++i) {
    const double want = cosines[i] > 1.5f ? 0 : 0.25 * std::exp(2.0 * cosines[i] - 3.0);
    EXPECT_NEAR(out[i], want, 1e-6 * want);
  }
  EXPECT_EQ(out[n], kGuard);
}

TEST_P(VectorMathTest, UpdateGoesThroughTheNormalisation) {
  const int n = GetParam();
  if (n < 2) return;
  const std::vector<float> gradient = Random();
  std::vector<float> weight = Random(), momentum = Random();
  const std::vector<float> w = weight, v = momentum;
  UpdateRow(gradient.data(), n, {0.1f, 0.9f, 0.01f}, weight.data(), momentum.data());
  double square = 0, radial = 0;
  for (int i = 0; i < n; ++i)
    square += static_cast<double>(w[i]) * w[i], radial += double{gradient[i]} * w[i];
  for (int i = 0; i < n; ++i) {
    const double dw = (gradient[i] - radial * w[i] / square) / std::sqrt(square);
    const double want = 0.9f * v[i] + dw + 0.01f * w[i];
    EXPECT_NEAR(momentum[i], want, 3e-6);
    EXPECT_NEAR(weight[i], w[i] - 0.1f * want, 1e-6);
  }
  EXPECT_EQ(weight[n], kGuard);
  EXPECT_EQ(momentum[n], kGuard);
}

INSTANTIATE_TEST_SUITE_P(Lengths, VectorMathTest,
                         ::testing::Values(0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 64, 65));

TEST(VectorMathEdgeTest, ARowWithoutColumnsLeavesTheSoftmaxEmpty) {
  RunningSoftmax running;
  float cosines[2] = {kNone, kNone};
  const TileWeights result = AddToSoftmax(cosines, 2, {}, &running, cosines);
  EXPECT_EQ(result.largest, 0);
  EXPECT_EQ(running.exp_sum, 0);
  EXPECT_EQ(running.max, kNone);
  EXPECT_EQ(cosines[0], 0);
}

TEST(VectorMathEdgeTest, AZeroCentreOnlyDecays) {
  float gradient[3] = {1, 2, 3}, weight[3] = {}, momentum[3] = {1, 1, 1};
  UpdateRow(gradient, 3, {1.0f, 0.5f, 0.1f}, weight, momentum);
  EXPECT_EQ(momentum[0], 0.5f);
  EXPECT_EQ(weight[0], -0.5f);
}

}  // namespace
}  // namespace ccs::kernels
