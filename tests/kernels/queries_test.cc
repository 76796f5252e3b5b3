// Evaluation and nearest centres against brute force in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/softmax.h"
#include "tests/kernels/backend_cluster.h"

namespace ccs::kernels {
namespace {

constexpr int kDim = 19;
constexpr int64_t kClasses = 1300;

class QueriesTest : public ::testing::TestWithParam<int> {  // number of shards
 protected:
  QueriesTest() : cluster_({.num_classes = kClasses, .num_shards = GetParam(), .dim = kDim, .threads = 2}) {
    // Two classes with one centre, which the first row lies on.
    std::vector<float> twin(kDim);
    Row(700, twin.data());
    Write(30, twin.data());
    std::normal_distribution<float> normal;
    features_.resize(kBatch * kDim);
    for (float& value : features_) value = normal(random_);
    std::copy(twin.begin(), twin.end(), features_.begin());
    for (int64_t& label : labels_) label = static_cast<int64_t>(random_() % kClasses);
    labels_[5] = -1;
    // Half of the rows near their own class.
    for (size_t i = kBatch / 2; i < kBatch; ++i) Row(labels_[i], &features_[i * kDim]);
  }

  ShardBackend& Owner(int64_t id, int64_t* local) {
    for (int rank = 0;; ++rank) {
      const ShardConfig& config = cluster_.shard(rank).config();
      *local = id - config.class_start;
      if (*local < config.num_local) return cluster_.shard(rank);
    }
  }
  void Row(int64_t id, float* row) {
    int64_t local;
    ASSERT_TRUE(Owner(id, &local).ReadRows(local, 1, row, nullptr).ok());
  }
  void Write(int64_t id, const float* row) {
    int64_t local;
    ASSERT_TRUE(Owner(id, &local).WriteRows(local, 1, row, nullptr).ok());
  }

  // Cosines of one row with every class.
  std::vector<double> Cosines(size_t i) {
    std::vector<double> cosines;
    for (const auto& shard : cluster_.ToReference()) {
      for (int64_t j = 0; j < shard.num_local; ++j) {
        double dot = 0, x = 0, w = 0;
        for (int d = 0; d < kDim; ++d) {
          const double a = features_[i * kDim + d];
          const double b = shard.weight[j * kDim + d];
          dot += a * b, x += a * a, w += b * b;
        }
        cosines.push_back(dot / std::sqrt(x * w));
      }
    }
    return cosines;
  }

  static constexpr size_t kBatch = 150;
  BackendCluster cluster_;
  std::mt19937_64 random_{4};
  std::vector<float> features_;
  std::vector<int64_t> labels_ = std::vector<int64_t>(kBatch);
};

TEST_P(QueriesTest, EvaluationAgreesWithBruteForce) {
  const Head head{.scale = 30, .margin = {.m2 = 0.3f}};
  ASSERT_TRUE(cluster_.SetBatch(features_, labels_).ok());
  std::vector<EvaluationPartial> all;
  for (int rank = 0; rank < cluster_.num_shards(); ++rank) {
    std::vector<EvaluationPartial> partials;
    ASSERT_TRUE(cluster_.shard(rank).Evaluate(head, cluster_.AllRows()[rank], &partials).ok());
    all.insert(all.end(), partials.begin(), partials.end());
  }
  const Evaluation got = CombineEvaluation(all, cluster_.num_shards(), labels_);
  double loss = 0;
  int64_t hits = 0;
  for (size_t i = 0; i < kBatch; ++i) {
    if (labels_[i] < 0) continue;
    std::vector<double> cosines = Cosines(i);
    const double target = cosines[labels_[i]];
    cosines.erase(cosines.begin() + labels_[i]);
    double sum = 0;
    for (double cosine : cosines) sum += std::exp(30 * cosine);
    loss += Softplus(std::log(sum) - 30 * ApplyMargin(head.margin, target).value);
    hits += target > *std::max_element(cosines.begin(), cosines.end());
  }
  EXPECT_NEAR(got.loss_sum, loss, 1e-6 * loss);
  EXPECT_EQ(got.rank1_hits, hits);
  EXPECT_GE(hits, static_cast<int64_t>(kBatch / 2 - 2));
}

TEST_P(QueriesTest, EvaluationChangesNoState) {
  const auto before = cluster_.Weight(0);
  ASSERT_TRUE(cluster_.SetBatch(features_, labels_).ok());
  std::vector<EvaluationPartial> partials;
  ASSERT_TRUE(cluster_.shard(0).Evaluate({}, cluster_.AllRows()[0], &partials).ok());
  EXPECT_EQ(cluster_.Weight(0), before);
}

TEST_P(QueriesTest, NearestCentresAgreeWithBruteForce) {
  constexpr int kNearest = 7;
  ASSERT_TRUE(cluster_.SetBatch(features_, labels_).ok());
  std::vector<Neighbour> all;
  for (int rank = 0; rank < cluster_.num_shards(); ++rank) {
    ASSERT_TRUE(cluster_.SetBatch(features_, labels_).ok());
    std::vector<Neighbour> neighbours;
    ASSERT_TRUE(cluster_.shard(rank).Nearest(kNearest, &neighbours).ok());
    all.insert(all.end(), neighbours.begin(), neighbours.end());
  }
  const auto got = MergeNeighbours(all, cluster_.num_shards(), kBatch, kNearest);
  for (size_t i = 0; i < kBatch; ++i) {
    const std::vector<double> cosines = Cosines(i);
    std::vector<Neighbour> want;
    for (int64_t id = 0; id < kClasses; ++id) want.push_back({cosines[id], id});
    std::partial_sort(want.begin(), want.begin() + kNearest, want.end(), Nearer);
    for (int n = 0; n < kNearest; ++n) {
      EXPECT_EQ(got[i * kNearest + n].class_id, want[n].class_id) << "row " << i << ", neighbour " << n;
      EXPECT_NEAR(got[i * kNearest + n].cosine, want[n].cosine, 1e-7);
    }
  }
  // The twins, by class id.
  EXPECT_EQ(got[0].class_id, 30);
  EXPECT_EQ(got[1].class_id, 700);
  EXPECT_EQ(got[0].cosine, got[1].cosine);
}

INSTANTIATE_TEST_SUITE_P(Shards, QueriesTest, ::testing::Values(1, 3));

TEST(NearestTest, PadsWhereTheShardHasFewerRows) {
  BackendCluster cluster({.num_classes = 3, .num_shards = 1, .dim = 4});
  ASSERT_TRUE(cluster.SetBatch(std::vector<float>(4, 1.0f), {-1}).ok());
  std::vector<Neighbour> neighbours;
  ASSERT_TRUE(cluster.shard(0).Nearest(5, &neighbours).ok());
  ASSERT_EQ(neighbours.size(), 5u);
  EXPECT_GE(neighbours[2].class_id, 0);
  EXPECT_EQ(neighbours[3].class_id, -1);
  EXPECT_EQ(neighbours[4].cosine, -std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace ccs::kernels
