// What the cluster tests train: models, batches that are pure functions of their step, and exact comparison.
#ifndef CCS_TESTS_SERVER_ENGINE_CLUSTER_CASES_H_
#define CCS_TESTS_SERVER_ENGINE_CLUSTER_CASES_H_

#include <ccs/v1/model.pb.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/error_info.h"
#include "tests/testing/in_process_cluster.h"

namespace ccs::testing {

inline constexpr int kCaseDim = 8;
inline constexpr int kCaseClasses = 23;

inline v1::ModelSpec CaseSpec(double sample_rate = 1, int64_t num_classes = kCaseClasses) {
  v1::ModelSpec spec;
  spec.set_num_classes(num_classes);
  spec.set_dim(kCaseDim);
  spec.mutable_head()->mutable_cosface()->set_margin(0.25f);
  spec.mutable_head()->set_scale(16);
  spec.set_sample_rate(sample_rate);
  spec.set_seed(5);
  spec.set_max_batch(64);
  return spec;
}

inline StepParams CaseParams(float learning_rate = 0.25f) {
  StepParams params;
  params.learning_rate = learning_rate;
  return params;
}

// `rows` rows with labels of any class, some of them twice, every fifth unlabelled.
inline TrainerBatch CaseBatch(uint32_t seed, int rows, int64_t num_classes = kCaseClasses) {
  std::mt19937 random(seed);
  std::normal_distribution<float> feature;
  std::uniform_int_distribution<int64_t> label(0, num_classes - 1);
  TrainerBatch batch;
  for (int i = 0; i < rows * kCaseDim; ++i) batch.features.push_back(feature(random));
  for (int i = 0; i < rows; ++i) batch.labels.push_back(i % 5 == 4 ? -1 : label(random));
  return batch;
}

// The step's batches of all trainers: 0 to 8 rows each, differing from trainer to trainer.
inline std::vector<TrainerBatch> CaseBatches(int64_t step, int num_trainers,
                                             int64_t num_classes = kCaseClasses) {
  std::vector<TrainerBatch> batches;
  for (int trainer = 0; trainer < num_trainers; ++trainer) {
    const auto seed = static_cast<uint32_t>(100 * step + trainer);
    batches.push_back(CaseBatch(seed, static_cast<int>((4 * trainer + 3 * step) % 9), num_classes));
  }
  return batches;
}

// Takes steps up to `last`; all must succeed. Returns each step's loss and first gradient values.
inline std::vector<double> Train(InProcessTrainers* trainers, int num_trainers, int64_t last) {
  std::vector<double> trace;
  while (trainers->position().step < last && !::testing::Test::HasFailure()) {
    const int64_t step = trainers->position().step + 1;
    for (const auto& reply : trainers->Step(CaseBatches(step, num_trainers), CaseParams())) {
      EXPECT_TRUE(reply.ok()) << "step " << step << ": " << reply.status();
      if (!reply.ok()) return trace;
      trace.push_back(reply->loss);
      trace.insert(trace.end(), reply->feature_grad.begin(), reply->feature_grad.end());
    }
  }
  return trace;
}

// The word in an error's details; empty if it has none.
inline std::string ReasonOf(const absl::Status& status) {
  const auto info = GetErrorInfo(status);
  return info ? info->reason : "";
}

// Two shards serve three trainers.
class TwoShardsTest : public ::testing::Test {
 protected:
  static constexpr int kTrainers = 3;

  TwoShardsTest() {
    options_.num_shards = 2;
    options_.spec = CaseSpec(0.5);
  }
  // Starts the cluster, or everything but its disks anew.
  void Begin() {
    cluster_.reset();
    cluster_ = std::make_unique<InProcessCluster>(options_);
    ASSERT_TRUE(cluster_->WaitServing().ok());
    trainers_ = std::make_unique<InProcessTrainers>(cluster_.get(), kTrainers, kCaseDim);
    ASSERT_TRUE(trainers_->Open().ok());
  }
  // The same, but the trainers live on and know nothing of it.
  void RestartUnderTheTrainers() {
    cluster_.reset();
    cluster_ = std::make_unique<InProcessCluster>(options_);
    ASSERT_TRUE(cluster_->WaitServing().ok());
    trainers_->set_cluster(cluster_.get());
  }
  // What an uninterrupted cluster does in steps (first, last], and its state then.
  std::pair<std::vector<double>, CentreRows> Uninterrupted(int64_t first, int64_t last) {
    InProcessClusterOptions options;
    options.num_shards = options_.num_shards;
    options.spec = options_.spec;
    InProcessCluster cluster(options);
    EXPECT_TRUE(cluster.WaitServing().ok());
    InProcessTrainers trainers(&cluster, kTrainers, kCaseDim);
    EXPECT_TRUE(trainers.Open().ok());
    Train(&trainers, kTrainers, first);
    std::vector<double> trace = Train(&trainers, kTrainers, last);
    return {trace, cluster.ReadAllCentres().value()};
  }
  // Trains up to `last`, which must give the same bits.
  void ExpectSameAs(const std::pair<std::vector<double>, CentreRows>& want, int64_t last) {
    EXPECT_EQ(Train(trainers_.get(), kTrainers, last), want.first);
    const CentreRows rows = cluster_->ReadAllCentres().value();
    EXPECT_EQ(rows.centres, want.second.centres);
    EXPECT_EQ(rows.momentum, want.second.momentum);
    EXPECT_EQ(rows.position.step, last);
  }

  InProcessClusterOptions options_;
  std::unique_ptr<InProcessCluster> cluster_;
  std::unique_ptr<InProcessTrainers> trainers_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_SERVER_ENGINE_CLUSTER_CASES_H_
