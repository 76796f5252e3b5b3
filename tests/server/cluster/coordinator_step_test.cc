// When a step goes, and when it fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/engine/error_info.h"
#include "tests/server/cluster/coordinator_fixture.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = ScriptedCluster::Kind;

std::string Message(const absl::Status& status) { return std::string(status.message()); }
std::string Reason(const absl::Status& status) {
  const auto info = GetErrorInfo(status);
  return info ? info->reason : "";
}

class CoordinatorStepTest : public testing::Test {
 protected:
  void Begin(int num_shards, int num_trainers) { Begin(ScriptedCluster::Options(num_shards), num_trainers); }
  void Begin(const CoordinatorOptions& options, int num_trainers) {
    cluster_ = std::make_unique<ScriptedCluster>(options);
    ASSERT_TRUE(cluster_->Serve());
    cluster_->OpenRun(num_trainers);
  }
  std::unique_ptr<ScriptedCluster> cluster_;
};

TEST_F(CoordinatorStepTest, GoesToEveryRankWithItsOwnSlicesOnceAllAreThere) {
  Begin(2, 3);  // trainers 0 and 2 are at home on shard 0, trainer 1 on shard 1
  v1::SliceReady second = cluster_->Slice(2, 1);
  second.set_rows(5);
  second.set_version(4);
  cluster_->Ready(0, second);
  cluster_->Ready(1, cluster_->Slice(1, 1));
  EXPECT_FALSE(cluster_->Has(0, Kind::kGo));
  v1::SliceReady empty = cluster_->Slice(0, 1);
  empty.set_rows(0);
  cluster_->Ready(0, empty);

  const auto go0 = cluster_->NextGo(0);
  const auto go1 = cluster_->NextGo(1);
  ASSERT_TRUE(go0 && go1);
  EXPECT_EQ(go0->sequence(), go1->sequence());
  EXPECT_EQ(go0->step().step(), 1);
  EXPECT_EQ(go0->step().params().learning_rate(), 0.5f);
  EXPECT_THAT(go0->step().rows_per_rank(), ElementsAre(5, 2));
  EXPECT_THAT(go1->step().rows_per_rank(), ElementsAre(5, 2));
  ASSERT_EQ(go0->step().slices_size(), 2);
  EXPECT_EQ(go0->step().slices(0).trainer_rank(), 0);
  EXPECT_EQ(go0->step().slices(1).trainer_rank(), 2);
  EXPECT_EQ(go0->step().slices(1).version(), 4);
  ASSERT_EQ(go1->step().slices_size(), 1);
  EXPECT_EQ(go1->step().slices(0).trainer_rank(), 1);
  EXPECT_FALSE(go0->step().has_checkpoint());
  EXPECT_EQ(cluster_->Status().position().step(), 1);
}

TEST_F(CoordinatorStepTest, WaitsForEverySliceInAGridOfShardsAndTrainers) {
  for (const int shards : {1, 2, 3, 5}) {
    for (const int trainers : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(testing::Message() << shards << " shards, " << trainers << " trainers");
      Begin(shards, trainers);
      std::vector<std::pair<int, int>> wanted;
      for (int trainer = 0; trainer < trainers; ++trainer) {
        for (int rank = 0; rank < shards; ++rank) {
          if (IsHome(rank, shards, trainer, trainers)) wanted.emplace_back(rank, trainer);
        }
      }
      EXPECT_EQ(wanted.size(), static_cast<size_t>(std::max(shards, trainers)));
      for (const auto& [rank, trainer] : wanted) {
        EXPECT_FALSE(cluster_->Has(0, Kind::kGo));
        v1::SliceReady slice = cluster_->Slice(trainer, 1);
        slice.set_rows(1);
        cluster_->Ready(rank, slice);
      }
      EXPECT_TRUE(cluster_->Has(0, Kind::kGo));
    }
  }
}

TEST_F(CoordinatorStepTest, GoesOnStepAfterStep) {
  Begin(2, 1);
  for (int step = 1; step <= 3; ++step) {
    const auto go = cluster_->Step(step);
    ASSERT_TRUE(go);
    EXPECT_EQ(go->step().step(), step);
  }
}

TEST_F(CoordinatorStepTest, TrainersThatDisagreeFailTheAttemptWithBothValuesAndNames) {
  struct Case {
    std::function<void(v1::StepParams*)> change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto* p) { p->set_learning_rate(0.25f); },
       "learning_rate: trainer 0 says 0.5, trainer 1 says 0.25"},
      {[](auto* p) { p->set_scale(32); }, "scale: trainer 0 says the spec's, trainer 1 says 32"},
      {[](auto* p) { p->mutable_margin()->set_m3(0.4f); },
       "margin: trainer 0 says the spec's, trainer 1 says (0, 0, 0.4)"},
      {[](auto* p) { p->set_checkpoint(true); }, "checkpoint: trainer 0 says false, trainer 1 says true"},
  };
  Begin(2, 2);
  int attempt = 1;
  for (const Case& test : cases) {
    SCOPED_TRACE(test.message);
    v1::SliceReady first = cluster_->Slice(0, 1);
    first.set_attempt(attempt);
    v1::SliceReady second = cluster_->Slice(1, 1);
    second.set_attempt(attempt);
    test.change(second.mutable_params());
    cluster_->ReadyAtHome(first);
    cluster_->ReadyAtHome(second);
    for (int rank = 0; rank < 2; ++rank) {
      const auto message = cluster_->Next(rank, Kind::kStepFailed);
      ASSERT_TRUE(message);
      EXPECT_EQ(message->step_failed().step(), 1);
      EXPECT_EQ(message->step_failed().attempt(), attempt);
      const absl::Status status = StatusFromProto(message->step_failed().status());
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(Message(status), HasSubstr("trainers disagree on " + test.message));
      EXPECT_EQ(Reason(status), "trainers_disagree");
    }
    ++attempt;
  }
  EXPECT_FALSE(cluster_->Has(0, Kind::kGo));
  EXPECT_EQ(cluster_->Status().position().step(), 0) << "nothing has changed";
}

TEST_F(CoordinatorStepTest, TheNextAttemptGoesAndSlicesOfTheFailedOneAreLeftOut) {
  Begin(1, 2);
  v1::SliceReady odd = cluster_->Slice(1, 1);
  odd.mutable_params()->set_learning_rate(9);
  cluster_->ReadyAtHome(cluster_->Slice(0, 1));
  cluster_->ReadyAtHome(odd);
  ASSERT_FALSE(cluster_->StepFailure(0).ok());

  cluster_->ReadyAtHome(cluster_->Slice(1, 1));  // attempt 1, on its way when the attempt failed
  v1::SliceReady again = cluster_->Slice(0, 1);
  again.set_attempt(2);
  cluster_->ReadyAtHome(again);
  EXPECT_FALSE(cluster_->Has(0, Kind::kGo));
  again.set_trainer_rank(1);
  again.set_incarnation(1001);
  cluster_->ReadyAtHome(again);
  EXPECT_TRUE(cluster_->Has(0, Kind::kGo));
}

// One shard has the correction already, the other still what it corrects.
TEST_F(CoordinatorStepTest, PartsOfTwoCallsNeverGoTogether) {
  Begin(2, 1);  // both shards are home to the trainer
  v1::SliceReady part = cluster_->Slice(0, 1);
  part.set_call(1);
  cluster_->Ready(0, part);
  v1::SliceReady corrected = part;
  corrected.set_call(2);
  cluster_->Ready(1, corrected);
  EXPECT_FALSE(cluster_->Has(0, Kind::kGo));
  EXPECT_EQ(cluster_->Status().state_detail(), "step 1 waits for trainers 0");
  cluster_->Ready(0, corrected);  // the same payload, hence the same version
  EXPECT_TRUE(cluster_->Has(0, Kind::kGo));
  EXPECT_TRUE(cluster_->Has(1, Kind::kGo));
}

TEST_F(CoordinatorStepTest, PartsOfTwoCallsFailTheAttemptAtTheDeadline) {
  Begin(2, 1);
  v1::SliceReady part = cluster_->Slice(0, 1);
  cluster_->Ready(0, part);
  part.set_call(2);
  cluster_->Ready(1, part);
  cluster_->TickAlive(absl::Seconds(9.9));
  EXPECT_EQ(Reason(cluster_->StepFailure(0)), "missing_trainers");
}

TEST_F(CoordinatorStepTest, ACorrectedSliceReplacesTheEarlierOneAndAnOlderOneDoesNot) {
  Begin(1, 2);
  v1::SliceReady corrected = cluster_->Slice(0, 1);
  corrected.set_version(3);
  corrected.set_rows(7);
  cluster_->ReadyAtHome(cluster_->Slice(0, 1));
  cluster_->ReadyAtHome(corrected);
  v1::SliceReady stale = cluster_->Slice(0, 1);
  stale.set_version(2);
  cluster_->ReadyAtHome(stale);
  cluster_->ReadyAtHome(cluster_->Slice(1, 1));
  const auto go = cluster_->NextGo(0);
  ASSERT_TRUE(go);
  EXPECT_EQ(go->step().slices(0).version(), 3);
  EXPECT_THAT(go->step().rows_per_rank(), ElementsAre(9));
}

TEST_F(CoordinatorStepTest, SlicesThatDoNotBelongAreLeftOut) {
  Begin(2, 2);
  cluster_->Ready(0, cluster_->Slice(0, 1));
  const auto without = [this](const std::function<void(v1::SliceReady*)>& change, int rank = 1) {
    v1::SliceReady slice = cluster_->Slice(1, 1);
    change(&slice);
    cluster_->Ready(rank, slice);
    return !cluster_->Has(0, Kind::kGo);
  };
  EXPECT_TRUE(without([](auto* s) { s->set_epoch(77); }));
  EXPECT_TRUE(without([](auto* s) { s->set_incarnation(5); }));
  EXPECT_TRUE(without([](auto* s) { s->set_attempt(2); }));
  EXPECT_TRUE(without([](auto* s) { s->set_step(2); }));
  EXPECT_TRUE(without([](auto* s) { s->set_step(0); }));
  EXPECT_TRUE(without([](auto* s) { s->set_run_id("other"); }));
  EXPECT_TRUE(without([](auto* s) { s->set_trainer_rank(-1); }));
  EXPECT_TRUE(without([](auto* s) { s->set_trainer_rank(2); }));
  EXPECT_TRUE(without([](auto*) {}, /*rank=*/0)) << "not at home there";
  EXPECT_FALSE(without([](auto*) {}));
}

TEST_F(CoordinatorStepTest, TooManyRowsTogetherFailWithBothNumbers) {
  Begin(1, 2);
  v1::SliceReady big = cluster_->Slice(0, 1);
  big.set_rows(15);
  cluster_->ReadyAtHome(big);
  cluster_->ReadyAtHome(cluster_->Slice(1, 1));
  const absl::Status failure = cluster_->StepFailure(0);
  EXPECT_EQ(failure.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(failure), HasSubstr("17 rows together, max_batch is 16"));
  EXPECT_EQ(Reason(failure), "batch_too_large");

  big.set_attempt(2);
  big.set_rows(14);
  cluster_->ReadyAtHome(big);
  v1::SliceReady other = cluster_->Slice(1, 1);
  other.set_attempt(2);
  cluster_->ReadyAtHome(other);
  EXPECT_TRUE(cluster_->Has(0, Kind::kGo)) << "exactly max_batch is allowed";
}

TEST_F(CoordinatorStepTest, MissingTrainersAreNamedBeforeTheTrainersOwnDeadline) {
  Begin(2, 4);
  v1::SliceReady slice = cluster_->Slice(2, 1);
  slice.set_wait_ms(2000);  // margin: 200 ms
  cluster_->ReadyAtHome(slice);
  cluster_->ReadyAtHome(cluster_->Slice(1, 1));
  EXPECT_EQ(cluster_->Status().state_detail(), "step 1 waits for trainers 0, 3");
  cluster_->Tick(absl::Milliseconds(1799));
  EXPECT_FALSE(cluster_->Has(0, Kind::kStepFailed));
  cluster_->Tick(absl::Milliseconds(1));
  for (int rank = 0; rank < 2; ++rank) {
    const absl::Status failure = cluster_->StepFailure(rank);
    EXPECT_EQ(failure.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Message(failure), HasSubstr("missing trainers 0, 3 of 4"));
    const auto info = GetErrorInfo(failure);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->reason, "missing_trainers");
    EXPECT_THAT(info->missing_trainers, ElementsAre(0, 3));
  }
  EXPECT_EQ(cluster_->Status().state_detail(), "");
}

TEST_F(CoordinatorStepTest, ATrainerThatSentOnlyPartOfItsSlicesIsMissing) {
  Begin(3, 1);
  cluster_->Ready(0, cluster_->Slice(0, 1));
  cluster_->Ready(2, cluster_->Slice(0, 1));
  EXPECT_EQ(cluster_->Status().state_detail(), "step 1 waits for trainers 0");
}

TEST_F(CoordinatorStepTest, TheMarginOfALongWaitIsHalfASecond) {
  Begin(1, 2);
  cluster_->ReadyAtHome(cluster_->Slice(0, 1));  // waits 10 s
  cluster_->Heartbeat(0);
  cluster_->Tick(absl::Milliseconds(9499));
  EXPECT_FALSE(cluster_->Has(0, Kind::kStepFailed));
  cluster_->Tick(absl::Milliseconds(1));
  EXPECT_TRUE(cluster_->Has(0, Kind::kStepFailed));
}

TEST_F(CoordinatorStepTest, TheStepTimeoutCountsFromTheFirstSlice) {
  CoordinatorOptions options = ScriptedCluster::Options(1);
  options.step_timeout = absl::Seconds(5);
  Begin(options, 3);
  cluster_->ReadyAtHome(cluster_->Slice(0, 1));
  cluster_->Tick(absl::Seconds(3));
  cluster_->ReadyAtHome(cluster_->Slice(1, 1));
  cluster_->Tick(absl::Milliseconds(1999));
  EXPECT_FALSE(cluster_->Has(0, Kind::kStepFailed));
  cluster_->Tick(absl::Milliseconds(1));
  EXPECT_TRUE(cluster_->Has(0, Kind::kStepFailed));
}

TEST_F(CoordinatorStepTest, WaitsForEverWithoutASlice) {
  Begin(1, 1);
  for (int i = 0; i < 100; ++i) cluster_->TickAlive(absl::Seconds(5));
  EXPECT_FALSE(cluster_->Has(0, Kind::kStepFailed));
}

TEST_F(CoordinatorStepTest, ANewIncarnationDropsTheOldOnesSliceAndFencesItOff) {
  Begin(1, 2);
  cluster_->ReadyAtHome(cluster_->Slice(0, 1));
  cluster_->Propose(0, ScriptedCluster::OpenRunProposal("run", 0, 2, 4242));
  cluster_->FinishOperation();
  cluster_->ReadyAtHome(cluster_->Slice(1, 1));
  cluster_->ReadyAtHome(cluster_->Slice(0, 1));
  EXPECT_FALSE(cluster_->Has(0, Kind::kGo));
  v1::SliceReady renewed = cluster_->Slice(0, 1);
  renewed.set_incarnation(4242);
  cluster_->ReadyAtHome(renewed);
  EXPECT_TRUE(cluster_->Has(0, Kind::kGo));
}

TEST_F(CoordinatorStepTest, AnyCheckpointDueIsOneForAllRanks) {
  CoordinatorOptions options = ScriptedCluster::Options(2);
  options.checkpoint_interval_steps = 3;
  Begin(options, 1);
  for (int step = 1; step <= 7; ++step) {
    const auto go = cluster_->Step(step, /*checkpoint=*/step == 4);
    ASSERT_TRUE(go);
    EXPECT_EQ(go->step().has_checkpoint(), step == 3 || step == 4 || step == 6) << step;
    if (!go->step().has_checkpoint()) continue;
    EXPECT_EQ(go->step().checkpoint().lineage(), cluster_->lineage());
    EXPECT_EQ(go->step().checkpoint().step(), step);
    std::optional<v1::Go> other;
    do {
      other = cluster_->NextGo(1);
    } while (other && other->sequence() != go->sequence());
    ASSERT_TRUE(other);
    EXPECT_EQ(other->step().checkpoint().nonce(), go->step().checkpoint().nonce());
    cluster_->DoneEverywhere(go->sequence());
    for (int rank = 0; rank < 2; ++rank) {
      const auto committed = cluster_->Next(rank, Kind::kCheckpointCommitted);
      ASSERT_TRUE(committed);
      EXPECT_EQ(committed->checkpoint_committed().id().step(), step);
    }
  }
  EXPECT_EQ(cluster_->Status().last_checkpoint().id().step(), 6);
}

TEST_F(CoordinatorStepTest, ACheckpointFlagWithoutADirectoryFailsTheStep) {
  CoordinatorOptions options = ScriptedCluster::Options(1);
  options.has_checkpoint_dir = false;
  options.checkpoint_interval_steps = 1;
  Begin(options, 1);
  EXPECT_FALSE(cluster_->Step(1, /*checkpoint=*/true));
  const absl::Status failure = cluster_->StepFailure(0);
  EXPECT_EQ(failure.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(failure), HasSubstr("without --checkpoint_dir"));
  v1::SliceReady plain = cluster_->Slice(0, 1);
  plain.set_attempt(2);
  cluster_->ReadyAtHome(plain);
  const auto go = cluster_->NextGo(0);
  ASSERT_TRUE(go);
  EXPECT_FALSE(go->step().has_checkpoint());
}

}  // namespace
}  // namespace ccs
