// Checkpoints of a cluster of real processes: what is saved, killed and resumed goes on bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/distributed/ctl.h"
#include "tests/distributed/trainers.h"
#include "tests/testing/process_cluster.h"

namespace ccs::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kClasses = 53;
constexpr int kDim = 16;
constexpr int kTrainers = 2;

ProcessClusterOptions Options(int num_shards) {
  return {.server_binary = CCS_SERVER_BINARY,
          .num_shards = num_shards,
          .model = absl::StrCat("num_classes: ", kClasses, " dim: ", kDim,
                                " head { arcface {} scale: 16 } sample_rate: 0.5 seed: 7"),
          .flags = {"--heartbeat_interval_ms=100", "--heartbeat_timeout_ms=2000"},
          .threads = 1};
}

// What one step gave every trainer.
struct Outcome {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome TrainOneStep(Trainers& trainers, bool checkpoint = false) {
  const int64_t step = trainers.run().position().step + 1;
  std::vector<Rows> rows;
  for (int i = 0; i < trainers.size(); ++i) rows.push_back(RandomRows(kClasses, kDim, 5 + i, step, i));
  Outcome outcome;
  for (const auto& result : trainers.Step(rows, 0.1f, checkpoint)) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return outcome;
    outcome.loss = result->loss;
    outcome.gradients.push_back(result->feature_grad);
  }
  return outcome;
}

class ResumeTest : public ::testing::TestWithParam<int> {
 protected:
  std::vector<std::string> CheckpointFlags(const std::string& resume) {
    return {absl::StrCat("--checkpoint_dir=", (directory_.path() / "checkpoints").string()),
            absl::StrCat("--resume=", resume)};
  }

  // Five steps with a checkpoint after the third, SIGKILL to all, the rest up to the seventh.
  void KillAllAndGoOn(const std::string& log_flag, int64_t resumed_step);

  // What `ccsctl list` says once the newest checkpoint is of `step`.
  nlohmann::json WaitListed(const ProcessCluster& cluster, int64_t step) {
    nlohmann::json list;
    for (const absl::Time end = absl::Now() + absl::Seconds(30); absl::Now() < end;) {
      std::string output;
      EXPECT_EQ(Ctl(cluster.address(0), directory_.path(), {"list", "--format=json"}, &output), 0) << output;
      list = nlohmann::json::parse(output);
      if (!list["checkpoints"].empty() && list["checkpoints"].back()["step"] == step) return list;
    }
    ADD_FAILURE() << "no checkpoint of step " << step << ": " << list;
    return list;
  }

  // Seven steps without interruption or checkpoint.
  std::vector<Outcome> UninterruptedRun(std::vector<float>* centres) {
    TempDir directory;
    ProcessCluster cluster(Options(GetParam()), directory.path());
    EXPECT_TRUE(cluster.StartAll().ok());
    auto trainers = Trainers::Open(cluster, kTrainers);
    EXPECT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    std::vector<Outcome> outcomes;
    for (int step = 1; step <= 7; ++step) outcomes.push_back(TrainOneStep(*trainers));
    *centres = trainers->client().ReadCentres(AllClasses(kClasses)).value();
    const absl::Status stopped = cluster.Stop();
    EXPECT_TRUE(stopped.ok()) << stopped;
    return outcomes;
  }

  TempDir directory_;
};

TEST_P(ResumeTest, GoesOnBitEqualAfterEveryProcessIsKilled) { KillAllAndGoOn("--step_log=sync", 5); }

TEST_P(ResumeTest, WithoutALogGoesBackToTheCheckpointAfterEveryProcessIsKilled) {
  KillAllAndGoOn("--step_log=off", 3);
}

void ResumeTest::KillAllAndGoOn(const std::string& log_flag, int64_t resumed_step) {
  std::vector<float> expected_centres;
  const std::vector<Outcome> expected = UninterruptedRun(&expected_centres);

  ProcessClusterOptions options = Options(GetParam());
  options.flags.push_back(log_flag);
  ProcessCluster cluster(options, directory_.path());
  ASSERT_TRUE(cluster.StartAll(CheckpointFlags("none")).ok());
  {
    auto trainers = Trainers::Open(cluster, kTrainers);
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    for (int step = 1; step <= 5; ++step) {
      EXPECT_EQ(TrainOneStep(*trainers, /*checkpoint=*/step == 3), expected[step - 1]) << "step " << step;
    }
    const absl::Status written = cluster.WaitCheckpoint(3);
    ASSERT_TRUE(written.ok()) << written;
  }
  for (int rank = 0; rank < GetParam(); ++rank) {
    cluster.shard(rank).Signal(SIGKILL);
    ASSERT_TRUE(cluster.shard(rank).Wait(absl::Seconds(10)).ok());
  }

  ASSERT_TRUE(cluster.StartAll(CheckpointFlags("latest")).ok());
  auto trainers = Trainers::Open(cluster, kTrainers);
  ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
  ASSERT_EQ(trainers->run().position().step, resumed_step);
  for (int64_t step = resumed_step + 1; step <= 7; ++step) {
    EXPECT_EQ(TrainOneStep(*trainers), expected[step - 1]) << "step " << step;
  }
  EXPECT_EQ(trainers->client().ReadCentres(AllClasses(kClasses)).value(), expected_centres);
  const absl::Status stopped = cluster.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

TEST_P(ResumeTest, SigtermOfOneRankCheckpointsAllAtTheSameStep) {
  ProcessCluster cluster(Options(GetParam()), directory_.path());
  ASSERT_TRUE(cluster.StartAll(CheckpointFlags("latest")).ok());
  Outcome last;
  {
    auto trainers = Trainers::Open(cluster, kTrainers);
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    for (int step = 1; step <= 4; ++step) last = TrainOneStep(*trainers);
  }
  const int leaving = GetParam() - 1;
  cluster.shard(leaving).Signal(SIGTERM);
  const absl::StatusOr<int> exit = cluster.shard(leaving).Wait(absl::Seconds(30));
  ASSERT_TRUE(exit.ok()) << cluster.log(leaving);
  EXPECT_EQ(*exit, 0) << cluster.log(leaving);

  // The others wait for it; when it is back, the cluster goes on with nothing lost.
  ASSERT_TRUE(cluster.StartShard(leaving, CheckpointFlags("latest")).ok());
  auto trainers = Trainers::Open(cluster, kTrainers);
  ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
  EXPECT_EQ(trainers->run().position().step, 4);
  TrainOneStep(*trainers);
  const absl::Status stopped = cluster.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

TEST_P(ResumeTest, ResumesAtTheStepAskedForAndSaysWhichStepsThereAre) {
  ProcessCluster cluster(Options(GetParam()), directory_.path());
  std::vector<Outcome> outcomes;
  ASSERT_TRUE(cluster.StartAll(CheckpointFlags("none")).ok());
  {
    auto trainers = Trainers::Open(cluster, kTrainers);
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    for (int step = 1; step <= 4; ++step) outcomes.push_back(TrainOneStep(*trainers, step % 2 == 0));
  }
  ASSERT_TRUE(cluster.Stop().ok());

  ASSERT_TRUE(cluster.StartAll(CheckpointFlags("2")).ok());
  {
    auto trainers = Trainers::Open(cluster, kTrainers);
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    ASSERT_EQ(trainers->run().position().step, 2);
    EXPECT_EQ(TrainOneStep(*trainers), outcomes[2]);
  }
  ASSERT_TRUE(cluster.Stop().ok());

  ASSERT_TRUE(cluster.StartAll(CheckpointFlags("1")).ok());
  const absl::StatusOr<int> exit = cluster.shard(0).Wait(absl::Seconds(20));
  ASSERT_TRUE(exit.ok()) << "a shard that cannot resume should end: " << cluster.logs();
  EXPECT_EQ(*exit, 2);
  EXPECT_THAT(cluster.log(0), HasSubstr("step 1 cannot be gone back to"));
}

// The trainer's own files go back further than the number of checkpoints kept.
TEST_P(ResumeTest, ACheckpointThatTrainersAskedForIsThereUntilItIsReleased) {
  ProcessClusterOptions options = Options(GetParam());
  options.flags.insert(options.flags.end(), {"--keep_checkpoints=1", "--checkpoint_every=1"});
  ProcessCluster cluster(options, directory_.path());
  std::vector<Outcome> outcomes;
  ASSERT_TRUE(cluster.StartAll(CheckpointFlags("none")).ok());
  {
    auto trainers = Trainers::Open(cluster, kTrainers);
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    for (int64_t step = 1; step <= 5; ++step) {
      outcomes.push_back(TrainOneStep(*trainers, /*checkpoint=*/step == 2));
      WaitListed(cluster, step);
    }
  }
  const nlohmann::json list = WaitListed(cluster, 5);
  EXPECT_EQ(list["window"], nlohmann::json::parse(R"([{"first_step": 2, "last_step": 2},
                                                     {"first_step": 5, "last_step": 5}])"));
  ASSERT_EQ(list["checkpoints"].size(), 2u) << list;
  EXPECT_EQ(list["checkpoints"][0]["kept"], true);
  ASSERT_TRUE(cluster.Stop().ok());

  ASSERT_TRUE(cluster.StartAll(CheckpointFlags("2")).ok());
  auto trainers = Trainers::Open(cluster, kTrainers);
  ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
  ASSERT_EQ(trainers->run().position().step, 2);
  EXPECT_EQ(TrainOneStep(*trainers), outcomes[2]);
  EXPECT_EQ(WaitListed(cluster, 3)["checkpoints"].size(), 2u);
  std::string output;
  ASSERT_EQ(Ctl(cluster.address(0), directory_.path(), {"release", list["checkpoints"][0]["id"]}, &output), 0)
      << output;
  EXPECT_EQ(TrainOneStep(*trainers), outcomes[3]);
  EXPECT_EQ(WaitListed(cluster, 4)["checkpoints"].size(), 1u);
  const absl::Status stopped = cluster.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

INSTANTIATE_TEST_SUITE_P(Shards, ResumeTest, ::testing::Values(1, 3),
                         [](const auto& info) { return absl::StrCat(info.param); });

}  // namespace
}  // namespace ccs::testing
