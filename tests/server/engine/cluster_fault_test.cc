// A cluster of real parts in one process: missing trainers, failing exchanges, lost shards, restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/error_info.h"
#include "tests/server/engine/cluster_cases.h"
#include "tests/testing/memory_checkpoint_store.h"

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

// A step makes four collective calls: features, labels, partials, gradients.
class ClusterCollectiveFaultTest : public ClusterFaultTest, public ::testing::WithParamInterface<int> {};

TEST_P(ClusterCollectiveFaultTest, EveryoneGetsAnErrorAndTheGroupGoesOnFromTheCheckpoint) {
  const auto want = Uninterrupted(4, 7);
  UseCheckpoints(2);
  Begin();
  Train(trainers_.get(), kTrainers, 5);
  const Position abandoned = trainers_->position();
  std::mutex mutex;
  int calls = 0;
  cluster_->SetCollectiveFault([&](int rank, int /*call*/) {
    std::lock_guard lock(mutex);
    return rank == 1 && calls++ == GetParam() ? absl::UnavailableError("the network is down")
                                              : absl::OkStatus();
  });
  for (const auto& reply : trainers_->Step(CaseBatches(6, kTrainers), CaseParams())) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable) << reply.status();
  }
  ASSERT_TRUE(cluster_->WaitServing(abandoned.lineage).ok());

  for (const auto& reply : trainers_->Step(CaseBatches(6, kTrainers), CaseParams())) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kAborted) << reply.status();
    const auto info = GetErrorInfo(reply.status());
    ASSERT_TRUE(info && info->position);
    EXPECT_GT(info->position->lineage, abandoned.lineage);
    EXPECT_EQ(info->position->step, 4);
  }
  ASSERT_TRUE(trainers_->Open().ok());
  EXPECT_EQ(trainers_->position().step, 4);
  ExpectSameAs(want, 7);
}

INSTANTIATE_TEST_SUITE_P(Calls, ClusterCollectiveFaultTest, ::testing::Values(0, 1, 2, 3));

TEST_F(ClusterFaultTest, AKilledShardFailsWhoWaitsAndComesBackFromTheCheckpoint) {
  const auto want = Uninterrupted(2, 5);
  UseCheckpoints(2);
  Begin();
  Train(trainers_.get(), kTrainers, 3);
  const Position abandoned = trainers_->position();
  const std::vector<TrainerBatch> batches = CaseBatches(4, kTrainers);
  const auto zero = trainers_->Send(0, batches[0], CaseParams());  // at home on shard 0
  const auto one = trainers_->Send(1, batches[1], CaseParams());   // on shard 1
  cluster_->Kill(1);
  EXPECT_EQ(InProcessTrainers::Receive(zero).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(InProcessTrainers::Receive(one).status().code(), absl::StatusCode::kUnavailable);
  const auto forming = InProcessTrainers::Receive(trainers_->Send(0, batches[0], CaseParams()));
  EXPECT_EQ(forming.status().code(), absl::StatusCode::kUnavailable);
  cluster_->Start(1);
  ASSERT_TRUE(cluster_->WaitServing(abandoned.lineage).ok());
  ASSERT_TRUE(trainers_->Open().ok());
  EXPECT_EQ(trainers_->position().step, 2);
  ExpectSameAs(want, 5);
}

TEST_F(ClusterFaultTest, AShardKilledInTheMiddleOfAStepHangsNobody) {
  Begin();
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
  ASSERT_TRUE(cluster_->WaitServing(trainers_->position().lineage).ok());
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
  const auto failed = cluster_->Evaluate(1, batch.features, batch.labels, std::nullopt);
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kUnavailable) << failed.status();
  cluster_->SetCollectiveFault(nullptr);
  ASSERT_TRUE(cluster_->WaitServing(trainers_->position().lineage).ok());
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
