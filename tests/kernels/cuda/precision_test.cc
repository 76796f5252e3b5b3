// Products in bfloat16 and TF32: gradients within the promised 1e-2.
#include <gtest/gtest.h>

#include "tests/kernels/backend_cluster.h"
#include "tests/kernels/step_agreement.h"

namespace ccs::kernels {
namespace {

// Of one bfloat16 step against the reference: at random and late in training, in a width that fills no pack.
class PrecisionTest : public ::testing::TestWithParam<Precision> {
 protected:
  void ExpectAgrees(int dim, absl::Span<const double> cosines, const Tolerance& tolerance) {
    std::mt19937_64 random(11);
    BackendCluster cluster({.num_classes = 300, .num_shards = 2, .dim = dim, .precision = GetParam()});
    const auto sampled = cluster.AllRows();
    std::vector<float> centres = cluster.Weight(0);
    for (const Head& head : {kCosface, kArcface}) {
      std::vector<int64_t> labels = RandomLabels(40, 149, random);  // of the first shard
      std::vector<float> features = RandomFeatures(40, dim, random);
      if (!cosines.empty()) {
        for (int64_t& label : labels) label = label < 0 ? 0 : label;
        features = TrainedFeatures(centres, labels, dim, cosines, random);
      }
      ExpectStepAgrees(cluster, features, labels, sampled, head, tolerance);
      centres = cluster.Weight(0);
    }
  }
};

// Nothing is promised of a single row; with a small gradient it may be off by some per cent.
constexpr Tolerance kPromised{.whole = 1e-2, .row = 0.15};

TEST_P(PrecisionTest, RandomRowsAgree) { ExpectAgrees(64, {}, kPromised); }

TEST_P(PrecisionTest, WidthsThatFillNoPackAgree) { ExpectAgrees(37, {}, kPromised); }

TEST_P(PrecisionTest, LearnedRowsAgree) { ExpectAgrees(64, {{0.7, 0.7, 0.6, 0.5}}, kPromised); }

INSTANTIATE_TEST_SUITE_P(Reduced, PrecisionTest,
                         ::testing::Values(Precision::kBf16, Precision::kTf32, Precision::kFastest));

TEST(PrecisionTest, ProductsAreReallyRounded) {
  std::mt19937_64 random(5);
  const std::vector<float> features = RandomFeatures(8, 40, random);
  const std::vector<int64_t> labels = RandomLabels(8, 100, random);
  std::vector<std::vector<float>> gradients;
  for (Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16, Precision::kFastest}) {
    BackendCluster cluster({.num_classes = 100, .num_shards = 1, .dim = 40, .precision = precision});
    gradients.push_back(
        cluster.Step(features, labels, cluster.AllRows(), kCosface, kUpdate).value().gradient);
  }
  EXPECT_NE(gradients[0], gradients[1]);
  EXPECT_NE(gradients[1], gradients[2]);
  EXPECT_EQ(gradients[2], gradients[3]);
}

}  // namespace
}  // namespace ccs::kernels
