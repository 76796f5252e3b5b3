// The golden cases through the kernels, and through the reference that the other tests trust.
#include "tests/testing/golden.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/backend_cluster.h"
#include "tests/kernels/expect_close.h"

namespace ccs::kernels {
namespace {

using testing::GoldenCase;
using testing::GoldenShardStep;
using testing::GoldenStep;

// All shards' arrays of one step, one after the other.
template <typename T>
std::vector<T> Joined(const GoldenStep& step, std::vector<T> GoldenShardStep::*array) {
  std::vector<T> joined;
  for (const GoldenShardStep& shard : step.shards) {
    joined.insert(joined.end(), (shard.*array).begin(), (shard.*array).end());
  }
  return joined;
}

SampledRows Sampled(const GoldenStep& step) {
  SampledRows sampled;
  for (const GoldenShardStep& shard : step.shards) sampled.push_back(shard.sampled);
  return sampled;
}

// The recorded gradient without its factor; with the normalisation's projection where the kernels normalise
// (the recorded features are unit rows already).
std::vector<double> WantedGradient(const GoldenCase& golden, const GoldenStep& step, bool normalised) {
  std::vector<double> gradient = ToDouble(Joined(step, &GoldenShardStep::feature_grad));
  const std::vector<float> features = Joined(step, &GoldenShardStep::features);
  for (double& value : gradient) value /= golden.num_shards;
  if (!normalised) return gradient;
  for (size_t row = 0; row < gradient.size(); row += golden.dim) {
    double radial = 0;
    double square = 0;
    for (int d = 0; d < golden.dim; ++d) {
      radial += gradient[row + d] * features[row + d];
      square += static_cast<double>(features[row + d]) * features[row + d];
    }
    for (int d = 0; d < golden.dim; ++d) {
      gradient[row + d] = (gradient[row + d] - radial * features[row + d] / square) / std::sqrt(square);
    }
  }
  return gradient;
}

// The record is in single precision and off by up to 9.5e-7 itself.
constexpr double kRecord = 1.5e-6;

class GoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenTest, KernelsAgreeWithReferenceAndRecord) {
  const GoldenCase golden = testing::LoadGoldenCase(GetParam());
  const Head head{static_cast<float>(golden.head.scale),
                  {static_cast<float>(golden.head.m1), static_cast<float>(golden.head.m2),
                   static_cast<float>(golden.head.m3)}};
  const bool normalise = head.margin.needs_arccos();
  BackendCluster cluster({.num_classes = golden.num_classes,
                          .num_shards = golden.num_shards,
                          .dim = golden.dim,
                          .normalise_features = normalise});
  for (int k = 0; k < golden.num_shards; ++k) {
    ASSERT_EQ(golden.class_start[k], cluster.shard(k).config().class_start);
    ASSERT_TRUE(
        cluster.shard(k).WriteRows(0, golden.num_local[k], golden.first_weights[k].data(), nullptr).ok());
  }
  auto reference = cluster.ToReference();
  for (const GoldenStep& step : golden.steps) {
    const std::vector<float> features = Joined(step, &GoldenShardStep::features);
    const std::vector<int64_t> labels = Joined(step, &GoldenShardStep::labels);
    const UpdateParams update{step.learning_rate, golden.momentum, golden.weight_decay};
    const auto got = cluster.Step(features, labels, Sampled(step), head, update);
    ASSERT_TRUE(got.ok()) << got.status();
    const auto want = testing::ReferenceStep(
        &reference, Sampled(step), ToDouble(features), labels, golden.dim, ToReference(head),
        {update.learning_rate, update.momentum, update.weight_decay}, normalise);
    EXPECT_NEAR(got->loss, want.loss, kWhole * want.loss);
    EXPECT_NEAR(got->loss, step.loss, kWhole * step.loss);
    ExpectClose("gradient", got->gradient, want.gradient, golden.dim);
    ExpectClose("recorded gradient", got->gradient, WantedGradient(golden, step, normalise), golden.dim,
                {.whole = kRecord});
    for (int k = 0; k < golden.num_shards; ++k) {
      ExpectClose("weight", cluster.Weight(k), reference[k].weight, golden.dim);
      ExpectClose("momentum", cluster.Momentum(k), reference[k].momentum, golden.dim);
      ExpectClose("recorded weight", cluster.Weight(k), ToDouble(step.shards[k].weight), golden.dim);
      ExpectClose("recorded momentum", cluster.Momentum(k), ToDouble(step.shards[k].momentum), golden.dim,
                  {.whole = kRecord});
    }
  }
}

TEST_P(GoldenTest, ReferenceAgreesWithTheRecord) {
  const GoldenCase golden = testing::LoadGoldenCase(GetParam());
  auto shards = testing::EmptyReferenceShards(golden.num_classes, golden.num_shards, golden.dim);
  for (int k = 0; k < golden.num_shards; ++k) shards[k].weight = ToDouble(golden.first_weights[k]);
  for (const GoldenStep& step : golden.steps) {
    const auto result = testing::ReferenceStep(
        &shards, Sampled(step), ToDouble(Joined(step, &GoldenShardStep::features)),
        Joined(step, &GoldenShardStep::labels), golden.dim, golden.head,
        {step.learning_rate, golden.momentum, golden.weight_decay}, /*normalise_features=*/false);
    EXPECT_NEAR(result.loss, step.loss, kWhole * step.loss);
    EXPECT_LE(testing::RelativeError(result.gradient, WantedGradient(golden, step, false)), kWhole);
    for (int k = 0; k < golden.num_shards; ++k) {
      EXPECT_LE(testing::RelativeError(step.shards[k].weight, shards[k].weight), kWhole);
      EXPECT_LE(testing::RelativeError(step.shards[k].momentum, shards[k].momentum), kWhole);
    }
  }
}

TEST(GoldenCases, AreAllTwelve) { EXPECT_EQ(testing::GoldenCaseNames().size(), 12u); }

INSTANTIATE_TEST_SUITE_P(AllCases, GoldenTest, ::testing::ValuesIn(testing::GoldenCaseNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ccs::kernels
