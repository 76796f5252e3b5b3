// Faults of real processes: everyone gets an error in time, and the cluster comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/distributed/trainers.h"
#include "tests/testing/process_cluster.h"
#include "tests/testing/small_disk.h"

namespace ccs::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kClasses = 40;
constexpr int kDim = 8;
constexpr int kShards = 3;
constexpr int kTrainers = 3;

class FaultTest : public ::testing::Test {
 protected:
  explicit FaultTest(const std::string& step_log = "sync")
      : cluster_({.server_binary = CCS_SERVER_BINARY,
                  .num_shards = kShards,
                  .model = absl::StrCat("num_classes: ", kClasses, " dim: ", kDim, " seed: 3"),
                  .flags = {"--heartbeat_interval_ms=100", "--heartbeat_timeout_ms=1500",
                            "--collective_timeout_ms=3000", absl::StrCat("--step_log=", step_log),
                            absl::StrCat("--checkpoint_dir=", (directory_.path() / "checkpoints").string())},
                  .threads = 1},
                 directory_.path()) {}

  void SetUp() override {
    ASSERT_TRUE(cluster_.StartAll().ok());
    auto trainers = Trainers::Open(cluster_, kTrainers, absl::Seconds(20));
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster_.logs();
    trainers_.emplace(*std::move(trainers));
  }

  static std::vector<Rows> StepRows(int64_t step) {
    std::vector<Rows> rows;
    for (int i = 0; i < kTrainers; ++i) rows.push_back(RandomRows(kClasses, kDim, 4, step, i));
    return rows;
  }

  void ExpectStepSucceeds(Trainers& trainers, bool checkpoint = false) {
    const int64_t step = trainers.run().position().step + 1;
    for (const auto& result : trainers.Step(StepRows(step), 0.1f, checkpoint)) {
      ASSERT_TRUE(result.ok()) << result.status() << cluster_.logs();
    }
  }

  // Every trainer's step ends in an error well before `limit`.
  void ExpectStepFailsWithin(absl::Duration limit, Trainers& trainers) {
    const absl::Time began = absl::Now();
    const int64_t step = trainers.run().position().step + 1;
    for (const auto& result : trainers.Step(StepRows(step), 0.1f)) {
      EXPECT_THAT(result.status().code(),
                  AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded,
                        absl::StatusCode::kAborted))
          << result.status();
    }
    EXPECT_LT(absl::Now() - began, limit);
  }

  TempDir directory_;
  ProcessCluster cluster_;
  std::optional<Trainers> trainers_;
};

class FaultWithoutLogTest : public FaultTest {
 protected:
  FaultWithoutLogTest() : FaultTest("off") {}
};

TEST_F(FaultTest, AKilledShardFailsEveryTrainerByItsDeadlineAndNoStepIsLost) {
  ExpectStepSucceeds(*trainers_);
  ExpectStepSucceeds(*trainers_, /*checkpoint=*/true);
  ExpectStepSucceeds(*trainers_);
  const client::Position before = trainers_->run().position();
  cluster_.shard(2).Signal(SIGKILL);
  std::thread restart([this] {
    absl::SleepFor(absl::Seconds(1));
    EXPECT_TRUE(cluster_.StartShard(2).ok());
  });
  ExpectStepSucceeds(*trainers_);  // the trainers only wait
  restart.join();
  EXPECT_EQ(trainers_->run().position().step, 4);
  EXPECT_EQ(trainers_->run().position().lineage, before.lineage);
  auto impatient = Trainers::Open(cluster_, kTrainers, absl::Seconds(3));
  ASSERT_TRUE(impatient.ok()) << impatient.status();
  cluster_.shard(2).Signal(SIGKILL);
  ExpectStepFailsWithin(absl::Seconds(10), *impatient);
  ASSERT_TRUE(cluster_.StartShard(2).ok());
  auto again = Trainers::Open(cluster_, kTrainers, absl::Seconds(20));
  ASSERT_TRUE(again.ok()) << again.status() << cluster_.logs();
  EXPECT_GE(again->run().position().step, 4);  // the step that failed may have been taken all the same
  EXPECT_EQ(again->run().position().lineage, before.lineage);
  ExpectStepSucceeds(*again);
  const absl::Status stopped = cluster_.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

TEST_F(FaultTest, AShardThatComesBackAtAnotherAddressIsFoundDuringAStep) {
  ExpectStepSucceeds(*trainers_);
  const std::string former = cluster_.address(2);
  cluster_.shard(2).Signal(SIGKILL);
  ASSERT_TRUE(cluster_.shard(2).Wait(absl::Seconds(10)).ok());
  std::thread restart([this] {
    absl::SleepFor(absl::Milliseconds(500));
    cluster_.Move(2);
    EXPECT_TRUE(cluster_.StartShard(2).ok());
  });
  ExpectStepSucceeds(*trainers_);
  restart.join();
  ASSERT_NE(cluster_.address(2), former);
  EXPECT_EQ(trainers_->run().position().step, 2);
  EXPECT_TRUE(trainers_->client().ReadCentres(AllClasses(kClasses)).ok()) << "connected before it moved";
  const absl::Status stopped = cluster_.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

// All shards on one disk.
class FullDiskTest : public FaultTest {
 protected:
  explicit FullDiskTest(const std::string& step_log) : FaultTest(step_log) {}
  void SetUp() override {
    if (!disk_.why_not().empty()) GTEST_SKIP() << disk_.why_not();
    FaultTest::SetUp();
  }

  SmallDisk disk_{directory_.path() / "checkpoints", "64m"};
};

class FullLogTest : public FullDiskTest {
 protected:
  FullLogTest() : FullDiskTest("sync") {}
};

class FullCheckpointDiskTest : public FullDiskTest {
 protected:
  FullCheckpointDiskTest() : FullDiskTest("off") {}
};

TEST_F(FullCheckpointDiskTest, TrainingGoesOnAndTheFormerCheckpointIsThere) {
  ExpectStepSucceeds(*trainers_, /*checkpoint=*/true);
  ASSERT_TRUE(cluster_.WaitCheckpoint(1).ok());
  disk_.Fill();
  ExpectStepSucceeds(*trainers_, /*checkpoint=*/true);
  ExpectStepSucceeds(*trainers_);
  for (const absl::Time end = absl::Now() + absl::Seconds(20);;) {
    if (cluster_.log(0).find("failed: RESOURCE_EXHAUSTED") != std::string::npos) break;
    ASSERT_LT(absl::Now(), end) << cluster_.logs();
    absl::SleepFor(absl::Milliseconds(20));
  }
  ExpectStepSucceeds(*trainers_);
  for (int rank = 0; rank < kShards; ++rank) cluster_.shard(rank).Signal(SIGKILL);
  ASSERT_TRUE(cluster_.StartAll().ok());
  auto again = Trainers::Open(cluster_, kTrainers, absl::Seconds(20));
  ASSERT_TRUE(again.ok()) << again.status() << cluster_.logs();
  EXPECT_EQ(again->run().position().step, 1);
  disk_.MakeRoom();
  ExpectStepSucceeds(*again);
  const absl::Status stopped = cluster_.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

TEST_F(FullLogTest, TrainersWaitWhileTheDiskOfTheStepLogIsFullAndThenLoseNothing) {
  const client::Position before = trainers_->run().position();
  std::atomic<bool> enough = false;
  std::atomic<int64_t> steps = 0;
  std::thread training([&] {
    // The log has some megabytes of its own, so slices are large.
    std::vector<Rows> rows;
    for (int i = 0; i < kTrainers; ++i) rows.push_back(RandomRows(kClasses, kDim, 1300, 1, i));
    for (; !enough; ++steps) {
      for (const auto& result : trainers_->Step(rows, 0.1f)) {
        ASSERT_TRUE(result.ok()) << result.status() << cluster_.logs();
      }
    }
  });
  // Others take what room the log gives back when it is opened anew.
  std::atomic<bool> full = true;
  std::thread others([&] {
    for (; full; absl::SleepFor(absl::Milliseconds(2))) disk_.Fill();
  });
  const auto wait_for = [](const std::function<bool()>& what) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (!what() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(20));
    return what();
  };
  int64_t taken = 0;
  EXPECT_TRUE(wait_for([&] {
    taken = steps;
    absl::SleepFor(absl::Seconds(1.5));
    return steps == taken;
  })) << "what is not on disk must not be answered";
  EXPECT_THAT(cluster_.logs(), HasSubstr("No space left"));
  full = false;
  others.join();
  disk_.MakeRoom();
  EXPECT_TRUE(wait_for([&] { return steps >= taken + 3; })) << cluster_.logs();
  enough = true;
  training.join();
  EXPECT_EQ(trainers_->run().position().step, before.step + steps);
  EXPECT_EQ(trainers_->run().position().lineage, before.lineage);
  const absl::Status stopped = cluster_.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

TEST_F(FaultWithoutLogTest, AKilledShardTakesTheClusterBackToTheCheckpointAndTheTrainersAreTold) {
  ExpectStepSucceeds(*trainers_);
  ExpectStepSucceeds(*trainers_, /*checkpoint=*/true);
  ExpectStepSucceeds(*trainers_);
  ASSERT_TRUE(cluster_.WaitCheckpoint(2).ok());
  auto impatient = Trainers::Open(cluster_, kTrainers, absl::Seconds(3));
  ASSERT_TRUE(impatient.ok()) << impatient.status();
  cluster_.shard(2).Signal(SIGKILL);
  ExpectStepFailsWithin(absl::Seconds(10), *impatient);

  ASSERT_TRUE(cluster_.StartShard(2).ok());
  // Step 3 came after the last checkpoint: its history is abandoned, and whoever holds it is told so.
  const auto stale = trainers_->Step(StepRows(4), 0.1f);
  for (const auto& result : stale) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted) << result.status();
    const std::optional<client::Position> position = client::PositionFromStatus(result.status());
    ASSERT_TRUE(position.has_value()) << result.status();
    EXPECT_EQ(position->step, 2);
  }
  auto again = Trainers::Open(cluster_, kTrainers, absl::Seconds(20));
  ASSERT_TRUE(again.ok()) << again.status() << cluster_.logs();
  EXPECT_EQ(again->run().position().step, 2);
  ExpectStepSucceeds(*again);
  const absl::Status stopped = cluster_.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

TEST_F(FaultTest, TheCoordinatorsDeathIsSurvivedToo) {
  ExpectStepSucceeds(*trainers_, /*checkpoint=*/true);
  ExpectStepSucceeds(*trainers_);
  const client::Position before = trainers_->run().position();
  cluster_.shard(0).Signal(SIGKILL);
  ASSERT_TRUE(cluster_.shard(0).Wait(absl::Seconds(10)).ok());
  ASSERT_TRUE(cluster_.StartShard(0).ok());
  ExpectStepSucceeds(*trainers_);
  EXPECT_EQ(trainers_->run().position().step, 3);
  EXPECT_EQ(trainers_->run().position().lineage, before.lineage);
}

TEST_F(FaultWithoutLogTest, TheCoordinatorsDeathIsSurvivedToo) {
  ExpectStepSucceeds(*trainers_, /*checkpoint=*/true);
  ExpectStepSucceeds(*trainers_);
  ASSERT_TRUE(cluster_.WaitCheckpoint(1).ok());
  cluster_.shard(0).Signal(SIGKILL);
  ASSERT_TRUE(cluster_.shard(0).Wait(absl::Seconds(10)).ok());
  ASSERT_TRUE(cluster_.StartShard(0).ok());
  auto again = Trainers::Open(cluster_, kTrainers, absl::Seconds(20));
  ASSERT_TRUE(again.ok()) << again.status() << cluster_.log(1);
  EXPECT_EQ(again->run().position().step, 1);
  ExpectStepSucceeds(*again);
}

TEST_F(FaultTest, AStoppedShardIsNoticedWithinTheTimeout) {
  ExpectStepSucceeds(*trainers_, /*checkpoint=*/true);
  ExpectStepSucceeds(*trainers_);
  auto impatient = Trainers::Open(cluster_, kTrainers, absl::Seconds(4));
  ASSERT_TRUE(impatient.ok()) << impatient.status();
  cluster_.shard(1).Signal(SIGSTOP);
  ExpectStepFailsWithin(absl::Seconds(10), *impatient);
  EXPECT_THAT(cluster_.logs(), HasSubstr("rank 1 was silent for"));
  cluster_.shard(1).Signal(SIGCONT);
  auto again = Trainers::Open(cluster_, kTrainers, absl::Seconds(30));
  ASSERT_TRUE(again.ok()) << again.status() << cluster_.logs();
  ExpectStepSucceeds(*again);
}

TEST_F(FaultTest, ATrainerThatNeverComesIsNamedToThoseWhoWait) {
  ExpectStepSucceeds(*trainers_);
  const std::vector<float> before = trainers_->client().ReadCentres(AllClasses(kClasses)).value();
  auto impatient = cluster_.Connect(absl::Seconds(2));
  ASSERT_TRUE(impatient.ok());
  auto run = (*impatient)->OpenRun({.run_id = "test", .trainer_rank = 1, .num_trainers = kTrainers});
  ASSERT_TRUE(run.ok()) << run.status();
  const Rows rows = RandomRows(kClasses, kDim, 4, 2, 1);
  client::StepInput input;
  input.features = rows.features;
  input.labels = rows.labels;
  input.learning_rate = 0.1f;
  const auto result = (*run)->Step(input);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("0, 2"));
  EXPECT_EQ(trainers_->client().ReadCentres(AllClasses(kClasses)).value(), before);
}

}  // namespace
}  // namespace ccs::testing
