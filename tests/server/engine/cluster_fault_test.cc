// A cluster of real parts in one process: missing trainers, failing exchanges, lost shards, restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/error_info.h"
#include "tests/server/engine/cluster_cases.h"
#include "tests/testing/memory_checkpoint_store.h"
#include "tests/testing/memory_step_log.h"

namespace ccs::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ClusterFaultTest : public TwoShardsTest {
 protected:
  void UseCheckpoints(int64_t interval_steps) {
    options_.open_checkpoints = [this](int rank) { return disks_[rank]; };
    options_.checkpoint_interval_steps = interval_steps;
  }
  void UseLog() {
    options_.open_log = [this](int rank) { return logs_[rank]; };
  }

  // Until every shard has a checkpoint.
  void WaitStored() {
    for (const auto& disk : disks_) {
      while (disk->List()->empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Trainer 0 opens the run, to go on after `resume_step`.
  static v1::Propose OpenRunFrom(int64_t resume_step) {
    v1::Propose proposal;
    v1::OpenRunRequest* request = proposal.mutable_open_run();
    request->set_run_id("run");
    request->set_num_trainers(kTrainers);
    request->set_start_nonce(77);
    request->set_resume_step(resume_step);
    return proposal;
  }

  const std::vector<std::shared_ptr<MemoryStepLog>> logs_ = {std::make_shared<MemoryStepLog>(),
                                                             std::make_shared<MemoryStepLog>()};

 private:
  const std::vector<std::shared_ptr<MemoryCheckpointStore>> disks_ = {
      std::make_shared<MemoryCheckpointStore>(), std::make_shared<MemoryCheckpointStore>()};
};

TEST_F(ClusterFaultTest, ATrainerThatNeverComesFailsTheAttemptByItsDeadlineAndIsNamed) {
  Begin();
  const std::vector<TrainerBatch> batches = CaseBatches(1, kTrainers);
  const CentreRows before = cluster_->ReadAllCentres().value();
  trainers_->set_wait(absl::Milliseconds(300));
  const auto zero = trainers_->Send(0, batches[0], CaseParams());
  const auto two = trainers_->Send(2, batches[2], CaseParams());
  for (const auto& sent : {zero, two}) {
    const absl::Status status = InProcessTrainers::Receive(sent).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    const auto info = GetErrorInfo(status);
    ASSERT_TRUE(info.has_value());
    EXPECT_THAT(info->missing_trainers, ElementsAre(1));
  }
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, before.centres);
  EXPECT_EQ(cluster_->position(0).step, 0);
  trainers_->set_wait(absl::Seconds(40));
  Train(trainers_.get(), kTrainers, 2);
  EXPECT_EQ(cluster_->position(1).step, 2);
}

TEST_F(ClusterFaultTest, TrainersThatDisagreeFailTheAttemptWithBothValuesNamed) {
  Begin();
  const std::vector<TrainerBatch> batches = CaseBatches(1, kTrainers);
  StepParams rate = CaseParams(0.125f);
  StepParams scale = CaseParams();
  scale.scale = 48.0f;
  StepParams margin = CaseParams();
  margin.margin = kernels::Margin{1, 0, 0.0625f};
  const std::vector<std::pair<StepParams, const char*>> odd_ones = {
      {rate, "0.125"}, {scale, "48"}, {margin, "0.0625"}};
  const CentreRows before = cluster_->ReadAllCentres().value();
  for (const auto& [odd, value] : odd_ones) {
    const auto zero = trainers_->Send(0, batches[0], CaseParams());
    const auto one = trainers_->Send(1, batches[1], odd);
    const auto two = trainers_->Send(2, batches[2], CaseParams());
    for (const auto& sent : {zero, one, two}) {
      const absl::Status status = InProcessTrainers::Receive(sent).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(value));
    }
  }
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, before.centres);
  Train(trainers_.get(), kTrainers, 1);
}

TEST_F(ClusterFaultTest, TooManyRowsTogetherFailTheAttempt) {
  Begin();
  const TrainerBatch large = CaseBatch(1, 30);
  for (const auto& reply : trainers_->Step({large, large, large}, CaseParams())) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kResourceExhausted) << reply.status();
    EXPECT_THAT(std::string(reply.status().message()), AllOf(HasSubstr("90"), HasSubstr("64")));
  }
  Train(trainers_.get(), kTrainers, 1);
}

// A step makes four collective calls: features, labels, partials, gradients. Whichever fails, rows have not
// changed yet anywhere.
class ClusterCollectiveFaultTest : public ClusterFaultTest, public ::testing::WithParamInterface<int> {
 protected:
  // Step 6, whose exchange fails.
  void FailAStep() {
    std::mutex mutex;
    int calls = 0;
    const uint64_t epoch = cluster_->epoch();
    cluster_->SetCollectiveFault([&](int rank, int /*call*/) {
      std::lock_guard lock(mutex);
      return rank == 1 && calls++ == GetParam() ? absl::UnavailableError("the network is down")
                                                : absl::OkStatus();
    });
    for (const auto& reply : trainers_->Step(CaseBatches(6, kTrainers), CaseParams())) {
      EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable) << reply.status();
    }
    ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
    cluster_->SetCollectiveFault(nullptr);
  }
};

TEST_P(ClusterCollectiveFaultTest, EveryoneGetsAnErrorAndTheGroupGoesOnFromMemory) {
  const auto want = Uninterrupted(5, 7);
  Begin();
  Train(trainers_.get(), kTrainers, 5);
  FailAStep();
  ExpectSameAs(want, 7);  // without opening the run again
}

TEST_P(ClusterCollectiveFaultTest, WithALogTheStepIsTakenWithoutItsTrainersOrGivenBackToThem) {
  const auto want = Uninterrupted(5, 7);
  UseCheckpoints(2);
  UseLog();
  Begin();
  Train(trainers_.get(), kTrainers, 5);
  FailAStep();
  ExpectSameAs(want, 7);
}

INSTANTIATE_TEST_SUITE_P(Calls, ClusterCollectiveFaultTest, ::testing::Values(0, 1, 2, 3));

TEST_F(ClusterFaultTest, AKilledShardFailsWhoWaitsAndComesBackFromTheCheckpoint) {
  const auto want = Uninterrupted(2, 5);
  UseCheckpoints(2);
  Begin();
  Train(trainers_.get(), kTrainers, 3);
  WaitStored();
  const Position abandoned = trainers_->position();
  const uint64_t epoch = cluster_->epoch();
  const std::vector<TrainerBatch> batches = CaseBatches(4, kTrainers);
  const auto zero = trainers_->Send(0, batches[0], CaseParams());  // at home on shard 0
  const auto one = trainers_->Send(1, batches[1], CaseParams());   // on shard 1
  cluster_->Kill(1);
  EXPECT_EQ(InProcessTrainers::Receive(zero).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(InProcessTrainers::Receive(one).status().code(), absl::StatusCode::kUnavailable);
  const auto forming = InProcessTrainers::Receive(trainers_->Send(0, batches[0], CaseParams()));
  EXPECT_EQ(forming.status().code(), absl::StatusCode::kUnavailable);
  cluster_->Start(1);
  ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
  for (const auto& reply : trainers_->Step(batches, CaseParams())) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kAborted) << reply.status();
    const auto info = GetErrorInfo(reply.status());
    ASSERT_TRUE(info && info->position);
    EXPECT_GT(info->position->lineage, abandoned.lineage);
    EXPECT_EQ(info->position->step, 2);
  }
  ASSERT_TRUE(trainers_->Open().ok());
  EXPECT_EQ(trainers_->position().step, 2);
  ExpectSameAs(want, 5);
}

TEST_F(ClusterFaultTest, WithALogAKilledShardCostsNoStepAndTheTrainersOnlyWait) {
  for (const int64_t interval : {0, 2}) {  // without a checkpoint, and with one
    SCOPED_TRACE(interval);
    const auto want = Uninterrupted(3, 6);
    UseCheckpoints(interval);
    UseLog();
    options_.resume = {.kind = ResumePolicy::Kind::kNone};  // of the first start only
    Begin();
    const uint64_t lineage = trainers_->position().lineage;
    Train(trainers_.get(), kTrainers, 3);
    const uint64_t epoch = cluster_->epoch();
    cluster_->Kill(1);
    cluster_->Start(1);
    ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
    EXPECT_EQ(cluster_->position(0).lineage, lineage);
    EXPECT_EQ(cluster_->position(1).step, 3);
    ExpectSameAs(want, 6);
  }
}

TEST_F(ClusterFaultTest, WithALogAClusterThatIsStartedAnewGivesTheLastRepliesAgain) {
  for (const bool checkpoint_last : {false, true}) {
    SCOPED_TRACE(checkpoint_last);
    const auto want = Uninterrupted(4, 6);
    UseCheckpoints(checkpoint_last ? 4 : 3);
    UseLog();
    options_.resume = {.kind = ResumePolicy::Kind::kNone};
    Begin();
    options_.resume = {};
    Train(trainers_.get(), kTrainers, 3);
    const Position before = trainers_->position();
    const auto first = trainers_->Step(CaseBatches(4, kTrainers), CaseParams());
    RestartUnderTheTrainers();
    trainers_->set_position(before);  // the replies were lost on the way
    const auto again = trainers_->Step(CaseBatches(4, kTrainers), CaseParams());
    for (int trainer = 0; trainer < kTrainers; ++trainer) {
      ASSERT_TRUE(first[trainer].ok() && again[trainer].ok()) << again[trainer].status();
      EXPECT_EQ(again[trainer]->feature_grad, first[trainer]->feature_grad);
      EXPECT_EQ(again[trainer]->loss, first[trainer]->loss);
    }
    ExpectSameAs(want, 6);
  }
}

TEST_F(ClusterFaultTest, WithALogAnotherPayloadForAStepBeforeTheCrashIsRefused) {
  UseCheckpoints(0);
  UseLog();
  Begin();
  Train(trainers_.get(), kTrainers, 2);
  const Position after = trainers_->position();
  RestartUnderTheTrainers();
  trainers_->set_position({after.lineage, 1, 0});
  for (const auto& reply : trainers_->Step(CaseBatches(7, kTrainers), CaseParams())) {
    EXPECT_EQ(ReasonOf(reply.status()), "payload_differs") << reply.status();
  }
}

TEST_F(ClusterFaultTest, WithALogCommittedWritesAndTheRunComeBack) {
  UseCheckpoints(0);
  UseLog();
  Begin();
  ASSERT_TRUE(cluster_->StageCentres("w", {1, 15}, std::vector<float>(2 * kCaseDim, 3.0f)).ok());
  ASSERT_TRUE(cluster_->CommitCentres(0, "w", 2).ok());
  Train(trainers_.get(), kTrainers, 1);
  const CentreRows before = cluster_->ReadAllCentres().value();
  RestartUnderTheTrainers();
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, before.centres);
  EXPECT_TRUE(cluster_->CommitCentres(1, "w", 2).ok()) << "known, so not staged again";
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, before.centres);
  Train(trainers_.get(), kTrainers, 2);
}

TEST_F(ClusterFaultTest, ARecordThatOneShardLostIsALossThatIsSaidInANewLineage) {
  UseCheckpoints(0);
  UseLog();
  Begin();
  const uint64_t lineage = trainers_->position().lineage;
  Train(trainers_.get(), kTrainers, 5);
  logs_[1]->Damage(lineage, 3 + 3);  // three openings of the run come first: step 3
  RestartUnderTheTrainers();
  EXPECT_GT(cluster_->position(0).lineage, lineage);
  for (const auto& reply : trainers_->Step(CaseBatches(6, kTrainers), CaseParams())) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kAborted) << reply.status();
  }
  ASSERT_TRUE(trainers_->Open().ok());
  EXPECT_EQ(trainers_->position().step, 2);
}

TEST_F(ClusterFaultTest, AFullDiskStopsTheStepsLoudlyAndLosesNothing) {
  const auto want = Uninterrupted(3, 5);
  UseCheckpoints(0);
  UseLog();
  Begin();
  Train(trainers_.get(), kTrainers, 3);
  const uint64_t epoch = cluster_->epoch();
  logs_[0]->set_disk_full(true);
  for (const auto& reply : trainers_->Step(CaseBatches(4, kTrainers), CaseParams())) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable) << reply.status();
    EXPECT_THAT(std::string(reply.status().message()), HasSubstr("the log's disk is full"));
  }
  logs_[0]->set_disk_full(false);
  ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
  ExpectSameAs(want, 5);
}

TEST_F(ClusterFaultTest, ANewLineageThatCouldNotBeLoggedDoesNotGoOnFromMemory) {
  const auto want = Uninterrupted(3, 6);
  UseCheckpoints(2);
  UseLog();
  Begin();
  Train(trainers_.get(), kTrainers, 5);
  const uint64_t epoch = cluster_->epoch();
  logs_[1]->set_disk_full(true);
  v1::Propose proposal = OpenRunFrom(3);
  EXPECT_EQ(cluster_->Propose(0, proposal).status().code(), absl::StatusCode::kUnavailable);
  // Some groups break apart over it.
  for (const absl::Time end = absl::Now() + absl::Seconds(30); cluster_->epoch() < epoch + 2;) {
    ASSERT_LT(absl::Now(), end);
    absl::SleepFor(absl::Milliseconds(10));
  }
  logs_[1]->set_disk_full(false);
  ASSERT_TRUE(cluster_->WaitServing(epoch + 1).ok());
  ASSERT_TRUE(cluster_->Propose(0, proposal).ok());
  EXPECT_EQ(cluster_->position(0).step, 3);
  ASSERT_TRUE(trainers_->Open().ok());
  ExpectSameAs(want, 6);
}

TEST_F(ClusterFaultTest, ARunGoesBackToTheStepOfItsBackboneFile) {
  const auto want = Uninterrupted(2, 6);
  UseCheckpoints(2);
  UseLog();
  Begin();
  const uint64_t lineage = trainers_->position().lineage;
  Train(trainers_.get(), kTrainers, 5);
  v1::Propose proposal = OpenRunFrom(9);
  const uint64_t epoch = cluster_->epoch();
  EXPECT_EQ(cluster_->Propose(0, proposal).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
  EXPECT_EQ(cluster_->position(0).lineage, lineage) << "out of reach: nothing is abandoned";
  EXPECT_EQ(cluster_->Propose(0, proposal).status().code(), absl::StatusCode::kNotFound);

  proposal = OpenRunFrom(3);
  EXPECT_EQ(cluster_->Propose(0, proposal).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(cluster_->WaitServing(epoch + 1).ok());
  ASSERT_TRUE(cluster_->Propose(0, proposal).ok());
  EXPECT_EQ(cluster_->position(0).step, 3);
  EXPECT_GT(cluster_->position(0).lineage, lineage);
  for (const auto& reply : trainers_->Step(CaseBatches(6, kTrainers), CaseParams())) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kAborted) << reply.status();
  }
  ASSERT_TRUE(trainers_->Open().ok());
  // Their last results are of the step before: the reply to step 3 is there for them, though not the lineage
  // it was given in.
  trainers_->set_position({trainers_->position().lineage, 2});
  ExpectSameAs(want, 6);
}

TEST_F(ClusterFaultTest, AShardKilledInTheMiddleOfAStepHangsNobody) {
  Begin();
  const uint64_t epoch = cluster_->epoch();
  std::promise<void> in_the_step;
  std::once_flag once;
  cluster_->SetCollectiveFault([&](int rank, int /*call*/) {
    if (rank != 1) return absl::OkStatus();
    std::call_once(once, [&] { in_the_step.set_value(); });
    return absl::UnavailableError("about to die");
  });
  const auto batches = CaseBatches(1, kTrainers);
  std::vector<std::vector<PendingSlice>> sent;
  for (int trainer = 0; trainer < kTrainers; ++trainer) {
    sent.push_back(trainers_->Send(trainer, batches[trainer], CaseParams()));
  }
  in_the_step.get_future().wait();
  cluster_->Kill(1);
  for (const auto& slices : sent) {
    EXPECT_EQ(InProcessTrainers::Receive(slices).status().code(), absl::StatusCode::kUnavailable);
  }
  cluster_->SetCollectiveFault(nullptr);
  cluster_->Start(1);
  ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
  ASSERT_TRUE(trainers_->Open().ok());
  EXPECT_EQ(trainers_->position().step, 0) << "without checkpoints the initial weights are all there is";
  Train(trainers_.get(), kTrainers, 1);
}

TEST_F(ClusterFaultTest, QueriesFailWithTheGroupAndWorkAgainAfterwards) {
  Begin();
  cluster_->SetCollectiveFault([](int rank, int /*call*/) {
    return rank == 0 ? absl::UnavailableError("the network is down") : absl::OkStatus();
  });
  const TrainerBatch batch = CaseBatch(1, 5);
  const uint64_t epoch = cluster_->epoch();
  const auto failed = cluster_->Evaluate(1, batch.features, batch.labels, std::nullopt);
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kUnavailable) << failed.status();
  cluster_->SetCollectiveFault(nullptr);
  ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
  EXPECT_TRUE(cluster_->Evaluate(1, batch.features, batch.labels, std::nullopt).ok());
}

TEST_F(ClusterFaultTest, ARestartedClusterResumesAtTheNewestCheckpoint) {
  const auto want = Uninterrupted(4, 7);
  UseCheckpoints(0);
  Begin();
  Train(trainers_.get(), kTrainers, 3);
  StepParams with_checkpoint = CaseParams();
  with_checkpoint.checkpoint = true;
  for (const auto& reply : trainers_->Step(CaseBatches(4, kTrainers), with_checkpoint)) {
    ASSERT_TRUE(reply.ok()) << reply.status();
  }
  Train(trainers_.get(), kTrainers, 5);
  const uint64_t abandoned = trainers_->position().lineage;
  Begin();
  EXPECT_GT(trainers_->position().lineage, abandoned);
  EXPECT_EQ(trainers_->position().step, 4);
  ExpectSameAs(want, 7);

  options_.resume = {.kind = ResumePolicy::Kind::kNone};
  Begin();
  EXPECT_EQ(trainers_->position().step, 0);
}

TEST_F(ClusterFaultTest, AnAskedForCheckpointIsWholeWhenItIsAnswered) {
  UseCheckpoints(0);
  Begin();
  Train(trainers_.get(), kTrainers, 2);
  const auto result = cluster_->Checkpoint(1);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->checkpoint().id().step(), 2);
  EXPECT_GT(result->checkpoint().bytes(), 0);
  Begin();
  EXPECT_EQ(trainers_->position().step, 2);
}

TEST_F(ClusterFaultTest, WithoutADirectoryACheckpointIsRefused) {
  Begin();
  EXPECT_EQ(cluster_->Checkpoint(0).status().code(), absl::StatusCode::kFailedPrecondition);
  Train(trainers_.get(), kTrainers, 1);
}

TEST_F(ClusterFaultTest, ACommittedWriteIsKnownAfterARestart) {
  UseCheckpoints(0);
  Begin();
  const std::vector<float> centres(2 * kCaseDim, 3.0f);
  ASSERT_TRUE(cluster_->StageCentres("w", {1, 15}, centres).ok());
  ASSERT_TRUE(cluster_->CommitCentres(0, "w", 2).ok());
  Train(trainers_.get(), kTrainers, 1);
  ASSERT_TRUE(cluster_->Checkpoint(0).ok());
  const CentreRows saved = cluster_->ReadAllCentres().value();
  Begin();
  ASSERT_TRUE(cluster_->StageCentres("w", {1, 15}, centres).ok());
  EXPECT_TRUE(cluster_->CommitCentres(1, "w", 2).ok());
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, saved.centres);
}

TEST_F(ClusterFaultTest, DrainingSavesOnePositionOnAllRanks) {
  const auto want = Uninterrupted(3, 5);
  UseCheckpoints(0);
  Begin();
  Train(trainers_.get(), kTrainers, 3);
  const auto waiting = trainers_->Send(0, CaseBatches(4, kTrainers)[0], CaseParams());
  const absl::Status drained = cluster_->Drain(1);
  EXPECT_TRUE(drained.ok()) << drained;
  EXPECT_EQ(InProcessTrainers::Receive(waiting).status().code(), absl::StatusCode::kUnavailable);
  Begin();
  EXPECT_EQ(trainers_->position().step, 3);
  ExpectSameAs(want, 5);
}

}  // namespace
}  // namespace ccs::testing
