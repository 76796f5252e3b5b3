// Shards of real processes killed at random while a run trains: nothing is lost and nothing is done twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/distributed/trainers.h"
#include "tests/testing/process_cluster.h"

namespace ccs::testing {
namespace {

constexpr int kClasses = 53;
constexpr int kDim = 16;
constexpr int kTrainers = 2;
constexpr int kSteps = 60;
constexpr int kKills = 6;

ProcessClusterOptions Options(int num_shards) {
  return {.server_binary = CCS_SERVER_BINARY,
          .num_shards = num_shards,
          .model = absl::StrCat("num_classes: ", kClasses, " dim: ", kDim,
                                " head { arcface {} scale: 16 } sample_rate: 0.5 seed: 7"),
          .flags = {"--heartbeat_interval_ms=100", "--heartbeat_timeout_ms=1000", "--checkpoint_every=7"},
          .threads = 1};
}

std::vector<std::string> Flags(const ProcessCluster& cluster) {
  return {absl::StrCat("--checkpoint_dir=", cluster.checkpoint_dir().string()), "--resume=latest"};
}

// A seed that failed is tried again with CCS_CRASH_SEED=seed in the environment.
uint32_t Seed() {
  uint32_t seed = std::random_device{}();
  if (const char* fixed = std::getenv("CCS_CRASH_SEED")) {
    EXPECT_TRUE(absl::SimpleAtoi(fixed, &seed));
  }
  return seed;
}

struct Trace {
  std::vector<double> losses;
  std::vector<std::vector<float>> gradients;  // step after step, trainer after trainer
  std::vector<float> centres;
};

// The features of a step are made from the bits of the gradient that the trainer got in the step before, so
// that a reply that is wrong, lost or given twice changes all that follows.
Trace Train(Trainers& trainers, std::atomic<int>* steps_done) {
  Trace trace;
  std::vector<std::vector<float>> last(kTrainers);
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<Rows> rows;
    for (int i = 0; i < kTrainers; ++i) {
      rows.push_back(RandomRows(kClasses, kDim, 5, step, i));
      for (size_t j = 0; j < last[i].size(); ++j) rows[i].features[j] += 10 * last[i][j];
    }
    const auto results = trainers.Step(rows, 0.1f);
    for (int i = 0; i < kTrainers; ++i) {
      EXPECT_TRUE(results[i].ok()) << "step " << step << ": " << results[i].status();
      if (!results[i].ok()) return trace;
      last[i] = results[i]->feature_grad;
      trace.gradients.push_back(last[i]);
    }
    trace.losses.push_back(results[0]->loss);
    *steps_done = step;
  }
  trace.centres = trainers.client().ReadCentres(AllClasses(kClasses)).value();
  return trace;
}

class CrashTest : public ::testing::TestWithParam<int> {};

TEST_P(CrashTest, TrainersOnlyWaitWhileShardsAreKilledAndEveryBitIsTheSame) {
  const uint32_t seed = Seed();
  SCOPED_TRACE(absl::StrCat("CCS_CRASH_SEED=", seed));
  std::mt19937 random(seed);
  std::atomic<int> steps_done = 0;
  Trace want;
  {
    TempDir directory;
    ProcessCluster cluster(Options(GetParam()), directory.path());
    ASSERT_TRUE(cluster.StartAll(Flags(cluster)).ok());
    auto trainers = Trainers::Open(cluster, kTrainers);
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.log(0);
    want = Train(*trainers, &steps_done);
    ASSERT_EQ(steps_done, kSteps);
  }

  TempDir directory;
  ProcessCluster cluster(Options(GetParam()), directory.path());
  ASSERT_TRUE(cluster.StartAll(Flags(cluster)).ok());
  auto trainers = Trainers::Open(cluster, kTrainers, absl::Seconds(60));
  ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.log(0);
  steps_done = 0;
  Trace got;
  std::atomic<bool> ended = false;
  std::thread training([&] {
    got = Train(*trainers, &steps_done);
    ended = true;
  });
  for (int kill = 0; kill < kKills; ++kill) {
    // Somewhere in its share of the steps, and of the step.
    const int at = (kill * kSteps + static_cast<int>(random() % kSteps)) / kKills;
    while (steps_done < at && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    const int rank = static_cast<int>(random() % GetParam());
    cluster.shard(rank).Signal(SIGKILL);
    EXPECT_TRUE(cluster.shard(rank).Wait(absl::Seconds(10)).ok());
    EXPECT_TRUE(cluster.StartShard(rank, Flags(cluster)).ok());
  }
  training.join();
  EXPECT_EQ(steps_done, kSteps) << cluster.log(0);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.gradients, want.gradients);
  EXPECT_EQ(got.centres, want.centres);
  EXPECT_EQ(trainers->run().position().lineage, 1u) << "the history goes on";
}

INSTANTIATE_TEST_SUITE_P(Shards, CrashTest, ::testing::Values(1, 3),
                         [](const auto& info) { return absl::StrCat(info.param); });

}  // namespace
}  // namespace ccs::testing
