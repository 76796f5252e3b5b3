// Whole steps of several backends against the float64 reference.
#include <gtest/gtest.h>

#include <random>

#include "tests/kernels/backend_cluster.h"
#include "tests/kernels/backend_under_test.h"
#include "tests/kernels/step_agreement.h"

namespace ccs::kernels {
namespace {

class ShapeTest : public ::testing::TestWithParam<Shape> {};

// Heads x filter x normalisation, a few steps each, labels drawn with repeats and some missing.
TEST_P(ShapeTest, StepsAgreeWithTheReference) {
  const Shape shape = GetParam();
  std::mt19937_64 random(shape.classes * 31 + shape.dim);
  for (Head head : {kNormface, kCosface, kArcface, kCombined}) {
    for (float filter : {1.0f, 0.15f}) {
      for (bool normalise : {true, false}) {
        if (head.margin.needs_arccos() && !normalise) continue;
        head.filter_threshold = filter;
        BackendCluster cluster({.num_classes = shape.classes,
                                .num_shards = shape.shards,
                                .dim = shape.dim,
                                .normalise_features = normalise,
                                .kept_logits_bytes = 100'000});
        for (int64_t step = 0; step < 2; ++step) {
          std::vector<float> features = RandomFeatures(shape.batch, shape.dim, random);
          if (!normalise) MakeUnit(&features, shape.dim);
          const std::vector<int64_t> labels = RandomLabels(shape.batch, shape.classes, random);
          ExpectStepAgrees(cluster, features, labels, Sample(cluster, labels, shape.rate, step), head);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ragged, ShapeTest, ::testing::ValuesIn(RaggedShapes()));

class LabelTest : public ::testing::Test {
 protected:
  static constexpr int kDim = 24;
  BackendCluster cluster_{{.num_classes = 70, .num_shards = 3, .dim = kDim}};
  std::mt19937_64 random_{7};
};

TEST_F(LabelTest, AllOnOneShardAgrees) {
  const std::vector<int64_t> labels = {30, 31, 30, 45, 46};
  ExpectStepAgrees(cluster_, RandomFeatures(5, kDim, random_), labels, Sample(cluster_, labels, 0.2, 0),
                   kCosface);
}

TEST_F(LabelTest, AllTheSameAgrees) {
  const std::vector<int64_t> labels(20, 69);
  ExpectStepAgrees(cluster_, RandomFeatures(20, kDim, random_), labels, Sample(cluster_, labels, 0.3, 0),
                   kArcface);
}

TEST_F(LabelTest, PositivesOnlyWithoutNegativesOnTheirShardAgrees) {
  const std::vector<int64_t> labels = {5, 60};
  ExpectStepAgrees(cluster_, RandomFeatures(2, kDim, random_), labels, Sample(cluster_, labels, 0, 0),
                   kCosface);
}

TEST_F(LabelTest, OneRowAndOneSampledClassHasNoLossAndOnlyDecays) {
  const std::vector<int64_t> labels = {5};
  ExpectStepAgrees(cluster_, RandomFeatures(1, kDim, random_), labels, {{5}, {}, {}}, kCosface);
}

TEST_F(LabelTest, WithoutAnyLabelTheLossIsZeroAndSampledRowsDecay) {
  const std::vector<int64_t> labels(6, -1);
  const std::vector<float> features = RandomFeatures(6, kDim, random_);
  const std::vector<float> before = cluster_.Weight(0);
  const auto result = cluster_.Step(features, labels, {{1, 2}, {}, {}}, kCosface, kUpdate);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->loss, 0);
  EXPECT_EQ(result->gradient, std::vector<float>(6 * kDim, 0.0f));
  const std::vector<float> after = cluster_.Weight(0);
  for (size_t i = 0; i < before.size(); ++i) {
    const bool sampled = i / kDim == 1 || i / kDim == 2;
    EXPECT_FLOAT_EQ(after[i], sampled ? before[i] * (1 - 0.1f * 5e-4f) : before[i]) << i;
  }
}

TEST_F(LabelTest, EmptyBatchDecays) { ExpectStepAgrees(cluster_, {}, {}, cluster_.AllRows(), kCosface); }

TEST_F(LabelTest, RowsNotSampledKeepWeightAndMomentumBitForBit) {
  const std::vector<int64_t> labels = {3, 40, 3, -1};
  ExpectStepAgrees(cluster_, RandomFeatures(4, kDim, random_), labels, cluster_.AllRows(), kCosface);
  std::vector<std::vector<float>> before;
  for (int rank = 0; rank < 3; ++rank) {
    before.push_back(cluster_.Weight(rank));
    before.push_back(cluster_.Momentum(rank));
  }
  const SampledRows sampled = {{3, 9}, {0, 16}, {}};
  ASSERT_TRUE(cluster_.Step(RandomFeatures(4, kDim, random_), labels, sampled, kCosface, kUpdate).ok());
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<float> after[] = {cluster_.Weight(rank), cluster_.Momentum(rank)};
    for (size_t i = 0; i < after[0].size(); ++i) {
      const bool touched = std::binary_search(sampled[rank].begin(), sampled[rank].end(), i / kDim);
      EXPECT_EQ(after[0][i] != before[2 * rank][i], touched);
      EXPECT_EQ(after[1][i] != before[2 * rank + 1][i], touched);
    }
  }
}

TEST_F(LabelTest, ZeroFeatureRowCountsAndHasNoGradient) {
  std::vector<float> features = RandomFeatures(3, kDim, random_);
  std::fill_n(features.begin() + kDim, kDim, 0.0f);
  const std::vector<int64_t> labels = {1, 2, 3};
  ExpectStepAgrees(cluster_, features, labels, cluster_.AllRows(), kArcface);
  const auto result = cluster_.Step(features, labels, cluster_.AllRows(), kArcface, kUpdate);
  for (int d = 0; d < kDim; ++d) EXPECT_EQ(result->gradient[kDim + d], 0.0f);
}

TEST_F(LabelTest, WithoutMomentumAndDecayAgrees) {
  const std::vector<int64_t> labels = {1, 30, 60};
  ExpectStepAgrees(cluster_, RandomFeatures(3, kDim, random_), labels, cluster_.AllRows(), kCosface, {},
                   {.learning_rate = 0.5f, .momentum = 0, .weight_decay = 0});
}

TEST_F(LabelTest, ABatchSetAnewReplacesTheEarlierOne) {
  const std::vector<int64_t> labels = {1, 30, 60};
  const std::vector<float> features = RandomFeatures(3, kDim, random_);
  for (int rank = 0; rank < 3; ++rank) {
    std::copy(features.begin(), features.end(), cluster_.shard(rank).features());
    ASSERT_TRUE(cluster_.shard(rank).SetBatch({0, 1, 2}).ok());
    ASSERT_TRUE(cluster_.shard(rank).Pass1(kNormface, cluster_.AllRows()[rank]).ok());
  }
  ExpectStepAgrees(cluster_, RandomFeatures(3, kDim, random_), labels, cluster_.AllRows(), kCosface);
}

void ExpectTrainedStepAgrees(absl::Span<const double> cosines, double whole) {
  constexpr int kDim = 128;
  BackendCluster cluster({.num_classes = 2000, .num_shards = 1, .dim = kDim});
  std::mt19937_64 random(3);
  std::vector<int64_t> labels(64);
  for (int64_t& label : labels) label = static_cast<int64_t>(random() % 2000);
  for (const Head& head : {kCosface, kArcface}) {
    const auto features = TrainedFeatures(cluster.Weight(0), labels, kDim, cosines, random);
    ExpectStepAgrees(cluster, features, labels, cluster.AllRows(), head, {.whole = whole});
  }
}

TEST(TrainedStepTest, MixOfLearnedRowsAgrees) { ExpectTrainedStepAgrees({0.7, 0.7, 0.6, 0.5}, 3e-6); }

TEST(TrainedStepTest, NearlyAllSaturatedRowsAgree) {
  ExpectTrainedStepAgrees({0.95, 0.99, 0.9, 0.999}, 3e-5);
}

struct Outcome {
  std::vector<std::vector<float>> arrays;
  std::vector<double> losses;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome RunSteps(int threads, int64_t kept_logits_bytes) {
  const Shape shape = SeveralTiles();
  BackendCluster cluster({.num_classes = shape.classes,
                          .num_shards = shape.shards,
                          .dim = shape.dim,
                          .threads = threads,
                          .kept_logits_bytes = kept_logits_bytes});
  std::mt19937_64 random(9);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    const std::vector<int64_t> labels = RandomLabels(shape.batch, shape.classes, random);
    const auto result = cluster.Step(RandomFeatures(shape.batch, shape.dim, random), labels,
                                     Sample(cluster, labels, shape.rate, step), kCosface, kUpdate);
    outcome.losses.push_back(result.value().loss);
    outcome.arrays.push_back(result->gradient);
  }
  for (int rank = 0; rank < shape.shards; ++rank) {
    outcome.arrays.push_back(cluster.Weight(rank));
    outcome.arrays.push_back(cluster.Momentum(rank));
  }
  return outcome;
}

TEST(ReproducibilityTest, ThreadsAndKeptLogitsDoNotChangeABit) {
  const int64_t some_of_them = SeveralTiles().classes * SeveralTiles().batch;
  const Outcome outcome = RunSteps(1, 0);
  for (int threads : {1, 2, 3}) {
    for (int64_t kept : {int64_t{0}, some_of_them, int64_t{1} << 30}) {
      EXPECT_TRUE(RunSteps(threads, kept) == outcome) << threads << " threads, " << kept << " bytes kept";
    }
  }
}

}  // namespace
}  // namespace ccs::kernels
