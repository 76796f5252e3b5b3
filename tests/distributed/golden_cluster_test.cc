// The golden cases through a cluster of real processes: each shard is a trainer too, the sampled rows are
// replayed from the case's files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/distributed/shard_rows.h"
#include "tests/distributed/trainers.h"
#include "tests/testing/golden.h"
#include "tests/testing/process_cluster.h"

namespace ccs::testing {
namespace {

// The promised accuracy as wholes and row by row (kernels/README.md), against the float64 reference. The
// record is in single precision and off by up to 9.5e-7 itself.
constexpr double kWhole = 1e-6;
constexpr double kRow = 2e-5;
constexpr double kRecord = 1.5e-6;

double Error(const std::vector<float>& got, const std::vector<float>& record) {
  return RelativeError(got, std::vector<double>(record.begin(), record.end()));
}

void ExpectClose(const std::vector<float>& got, absl::Span<const double> want, int dim) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LE(RelativeError(got, want), kWhole);
  for (size_t row = 0; row < want.size(); row += dim) {
    EXPECT_LE(RelativeError(absl::MakeConstSpan(got).subspan(row, dim), want.subspan(row, dim)), kRow)
        << "row " << row / dim;
  }
}

// Margins on the angle want unit features, and the gradient then goes through the normalisation.
bool Normalises(const GoldenCase& golden) { return golden.head.m2 != 0; }

std::string Model(const GoldenCase& golden) {
  return absl::StrCat("num_classes: ", golden.num_classes, "\ndim: ", golden.dim,
                      "\nhead { combined { m1: ", golden.head.m1, " m2: ", golden.head.m2,
                      " m3: ", golden.head.m3, " } scale: ", golden.head.scale,
                      " }\nsample_rate: ", golden.sample_rate, "\noptimizer { momentum: ", golden.momentum,
                      " weight_decay: ", golden.weight_decay,
                      " }\nnormalise_features: ", Normalises(golden) ? "true" : "false", "\n");
}

// The case in float64, all shards and trainers as one.
class Reference {
 public:
  explicit Reference(const GoldenCase& golden)
      : golden_(golden), shards_(EmptyReferenceShards(golden.num_classes, golden.num_shards, golden.dim)) {
    for (int k = 0; k < golden.num_shards; ++k) {
      shards_[k].weight.assign(golden.first_weights[k].begin(), golden.first_weights[k].end());
    }
  }

  ReferenceResult Step(const GoldenStep& step) {
    std::vector<double> features;
    std::vector<int64_t> labels;
    std::vector<std::vector<int64_t>> sampled;
    for (const GoldenShardStep& shard : step.shards) {
      features.insert(features.end(), shard.features.begin(), shard.features.end());
      labels.insert(labels.end(), shard.labels.begin(), shard.labels.end());
      sampled.push_back(shard.sampled);
    }
    ReferenceResult result =
        ReferenceStep(&shards_, sampled, features, labels, golden_.dim, golden_.head,
                      {step.learning_rate, golden_.momentum, golden_.weight_decay}, Normalises(golden_));
    for (double& value : result.gradient) value *= golden_.num_shards;  // as many trainers
    return result;
  }

  const ReferenceShard& shard(int k) const { return shards_[k]; }

 private:
  const GoldenCase& golden_;
  std::vector<ReferenceShard> shards_;
};

class GoldenClusterTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenClusterTest, RealProcessesReproduceTheCase) {
  const GoldenCase golden = LoadGoldenCase(GetParam());
  TempDir directory;
  ProcessCluster cluster({.server_binary = CCS_SERVER_BINARY,
                          .num_shards = golden.num_shards,
                          .model = Model(golden),
                          .flags = {absl::StrCat("--replay_samples=", CCS_GOLDEN_DIR, "/", golden.name)},
                          .threads = 1},
                         directory.path());
  ASSERT_TRUE(cluster.StartAll().ok());
  auto trainers = Trainers::Open(cluster, golden.num_shards);
  ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
  std::vector<float> first;
  for (const auto& shard : golden.first_weights) first.insert(first.end(), shard.begin(), shard.end());
  const absl::Status written = trainers->client().WriteCentres(AllClasses(golden.num_classes), first);
  ASSERT_TRUE(written.ok()) << written;

  Reference reference(golden);
  for (const GoldenStep& step : golden.steps) {
    const ReferenceResult want = reference.Step(step);
    const size_t slice = want.gradient.size() / golden.num_shards;
    std::vector<Rows> rows;
    for (const GoldenShardStep& shard : step.shards) rows.push_back({shard.features, shard.labels});
    const auto results = trainers->Step(rows, step.learning_rate);
    for (int k = 0; k < golden.num_shards; ++k) {
      const GoldenShardStep& record = step.shards[k];
      ASSERT_TRUE(results[k].ok()) << results[k].status();
      EXPECT_NEAR(results[k]->loss, want.loss, kWhole * want.loss);
      EXPECT_NEAR(results[k]->loss, step.loss, kRecord * step.loss);
      ExpectClose(results[k]->feature_grad, absl::MakeConstSpan(want.gradient).subspan(k * slice, slice),
                  golden.dim);
      if (!Normalises(golden)) {
        EXPECT_LE(Error(results[k]->feature_grad, record.feature_grad), kRecord);
      }
      const auto got = ReadShardRows(cluster.address(k), golden.class_start[k], golden.num_local[k]);
      ASSERT_TRUE(got.ok()) << got.status();
      ExpectClose(got->weight, reference.shard(k).weight, golden.dim);
      ExpectClose(got->momentum, reference.shard(k).momentum, golden.dim);
      EXPECT_LE(Error(got->weight, record.weight), kRecord);
      EXPECT_LE(Error(got->momentum, record.momentum), kRecord);
    }
  }
  const absl::Status stopped = cluster.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenClusterTest, ::testing::ValuesIn(GoldenCaseNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ccs::testing
