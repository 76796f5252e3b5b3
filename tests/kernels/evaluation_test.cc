#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/shard_backend.h"
#include "kernels/softmax.h"

namespace ccs::kernels {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

TEST(SoftplusTest, IsStableOnBothSides) {
  EXPECT_DOUBLE_EQ(Softplus(0), std::log(2.0));
  EXPECT_EQ(Softplus(800), 800);
  EXPECT_DOUBLE_EQ(Softplus(-40), std::exp(-40));
  EXPECT_EQ(Softplus(kNone), 0);
}

TEST(SigmoidTest, KeepsItsDigitsWhereItIsTiny) {
  EXPECT_EQ(Sigmoid(0), 0.5);
  EXPECT_EQ(Sigmoid(800), 1);
  EXPECT_NEAR(Sigmoid(-40) / std::exp(-40), 1, 1e-15);
  EXPECT_EQ(Sigmoid(kNone), 0);
}

TEST(MergedSoftmaxTest, AddsShardsWithAndWithoutColumns) {
  MergedSoftmax merged;
  merged.Add({kNone, 0, 0});
  EXPECT_EQ(merged.log_sum(), kNone);
  merged.Add({1, 2, 0.5});
  merged.Add({3, 1, 0});
  merged.Add({kNone, 0, 0});
  merged.Add({-900, 5, 0});
  EXPECT_NEAR(merged.log_sum(), std::log(2 * std::exp(1.0) + std::exp(3.0)), 1e-15);
  EXPECT_EQ(merged.target_logit(), 0.5);
}

TEST(CombineEvaluationTest, SumsTheLossAndCountsHitsOfLabelledRows) {
  // Three rows, two shards: a hit, a miss, an unlabelled one.
  const std::vector<EvaluationPartial> partials = {
      {{1, 1, 5}, 0.5, 0.2},   {{2, 1, 0}, kNone, 0.9}, {{0, 1, 0}, kNone, 0.1},  // shard 0
      {{1, 2, 0}, kNone, 0.4}, {{2, 1, 3}, 0.3, 0.1},   {{0, 1, 0}, kNone, 0.1},  // shard 1
  };
  const Evaluation evaluation = CombineEvaluation(partials, 2, {0, 7, -1});
  const double want = Softplus(1 + std::log(3.0) - 5) + Softplus(2 + std::log(2.0) - 3);
  EXPECT_NEAR(evaluation.loss_sum, want, 1e-14);
  EXPECT_EQ(evaluation.rank1_hits, 1);
}

TEST(MergeNeighboursTest, TakesTheBestOfAllShardsAndPutsPaddingLast) {
  const std::vector<Neighbour> neighbours = {
      {0.9, 3}, {0.5, 1}, {0.1, 2},    {kNone, -1},  // shard 0, rows 0 and 1
      {0.9, 8}, {0.7, 9}, {kNone, -1}, {kNone, -1},
  };
  const auto merged = MergeNeighbours(neighbours, 2, 2, 2);
  ASSERT_EQ(merged.size(), 4u);
  EXPECT_EQ(merged[0].class_id, 3);  // equal cosines by class id
  EXPECT_EQ(merged[1].class_id, 8);
  EXPECT_EQ(merged[2].class_id, 2);
  EXPECT_EQ(merged[3].class_id, -1);
  EXPECT_EQ(merged[3].cosine, kNone);
}

}  // namespace
}  // namespace ccs::kernels
