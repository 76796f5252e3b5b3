// Runs, queries, writes, checkpoints and drain in the coordinator's order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/cluster/window.h"
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

v1::Propose Commit(const std::string& id, int64_t rows) {
  v1::Propose proposal;
  proposal.mutable_commit_write()->set_write_id(id);
  proposal.mutable_commit_write()->set_rows(rows);
  return proposal;
}
v1::Propose CheckpointProposal() {
  v1::Propose proposal;
  proposal.mutable_checkpoint();
  return proposal;
}
v1::Propose DrainProposal() {
  v1::Propose proposal;
  proposal.mutable_drain()->set_reason("SIGTERM");
  return proposal;
}

class CoordinatorOperationsTest : public testing::Test {
 protected:
  explicit CoordinatorOperationsTest(CoordinatorOptions options = ScriptedCluster::Options(2))
      : cluster_(options) {
    cluster_.Serve();
  }
  absl::Status Open(const std::string& run, int trainer, int num_trainers, uint64_t nonce) {
    cluster_.Propose(1, ScriptedCluster::OpenRunProposal(run, trainer, num_trainers, nonce));
    return cluster_.Outcome(1);
  }
  v1::ListCheckpointsReply List() {
    v1::Propose proposal;
    proposal.mutable_list_checkpoints();
    cluster_.Propose(0, proposal);
    return cluster_.NextResult(0)->checkpoints();
  }
  std::vector<int64_t> ListedSteps() {
    std::vector<int64_t> steps;
    const v1::ListCheckpointsReply list = List();
    for (const auto& info : list.checkpoints()) steps.push_back(info.id().step());
    return steps;
  }
  void TakeCheckpoint() {
    cluster_.Propose(0, CheckpointProposal());
    cluster_.DoneEverywhere(cluster_.NextGo(0)->sequence());
    EXPECT_TRUE(cluster_.Outcome(0).ok());
  }
  static v1::Propose ReleaseProposal(const v1::CheckpointId& id) {
    v1::Propose proposal;
    *proposal.mutable_release_checkpoint()->mutable_id() = id;
    return proposal;
  }
  ScriptedCluster cluster_;
};

// ---------------------------------------------------------------- runs

TEST_F(CoordinatorOperationsTest, OpenRunIsAnsweredOnceEveryShardKnowsTheRun) {
  const uint64_t token = cluster_.Propose(1, ScriptedCluster::OpenRunProposal("run", 1, 3, 77));
  const auto go = cluster_.NextGo(0);
  ASSERT_TRUE(go);
  EXPECT_EQ(go->run().run_id(), "run");
  EXPECT_EQ(go->run().num_trainers(), 3);
  EXPECT_THAT(go->run().incarnations(), ElementsAre(0, 77, 0));
  cluster_.Done(0, go->sequence());
  cluster_.Done(0, go->sequence());  // a rank counts once
  EXPECT_FALSE(cluster_.Has(1, Kind::kResult));
  cluster_.Done(1, go->sequence());
  const auto result = cluster_.NextResult(1);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->token(), token);
  EXPECT_EQ(result->open_run().incarnation(), 77u);
  EXPECT_EQ(result->open_run().position().lineage(), cluster_.lineage());
  EXPECT_EQ(result->open_run().position().step(), 0);
  EXPECT_FALSE(cluster_.Has(0, Kind::kResult)) << "only the proposer is told";
  const v1::StatusReply status = cluster_.Status();
  EXPECT_EQ(status.run().run_id(), "run");
  EXPECT_EQ(status.run().num_trainers(), 3);
  EXPECT_THAT(status.run().open_trainers(), ElementsAre(1));
}

TEST_F(CoordinatorOperationsTest, OpenRunTellsThePositionOfTheLastGo) {
  cluster_.OpenRun(1);
  ASSERT_TRUE(cluster_.Step(1));
  cluster_.Propose(0, ScriptedCluster::OpenRunProposal("run", 0, 1, 5));
  const auto go = cluster_.NextGo(0);
  cluster_.DoneEverywhere(go->sequence());
  EXPECT_EQ(cluster_.NextResult(0)->open_run().position().step(), 1);
}

TEST_F(CoordinatorOperationsTest, OpenRunRefusesWhatMakesNoSense) {
  EXPECT_EQ(Message(Open("", 0, 1, 1)), "run_id is empty");
  EXPECT_THAT(Message(Open("run", 0, 0, 1)), HasSubstr("num_trainers must be in 1..65536, is 0"));
  EXPECT_THAT(Message(Open("run", 0, 2'000'000'000, 1)), HasSubstr("is 2000000000"));
  EXPECT_THAT(Message(Open("run", 2, 2, 1)), HasSubstr("trainer_rank must be in 0..1, is 2"));
  EXPECT_THAT(Message(Open("run", -1, 2, 1)), HasSubstr("is -1"));
  const absl::Status no_nonce = Open("run", 0, 2, 0);
  EXPECT_EQ(no_nonce.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(no_nonce), "start_nonce must not be 0");
  EXPECT_FALSE(cluster_.Has(0, Kind::kGo));
}

TEST_F(CoordinatorOperationsTest, OpenRunRefusesAnotherRunAndAnotherNumberOfTrainersNamingBoth) {
  cluster_.OpenRun(2);
  const absl::Status another = Open("second", 0, 2, 9);
  EXPECT_EQ(another.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(another),
            "run 'run' is open with 2 trainers; close it before opening run 'second', or take it over");
  const absl::Status number = Open("run", 2, 3, 9);
  EXPECT_EQ(number.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      Message(number),
      "run 'run' is open with 2 trainers, trainer 2 says 3; close it to change the number, or take it over");
}

TEST_F(CoordinatorOperationsTest, CloseRunEndsItForAllAndClosingAClosedOneSucceeds) {
  cluster_.OpenRun(2);
  cluster_.ReadyAtHome(cluster_.Slice(0, 1));
  v1::Propose close;
  close.mutable_close_run()->set_run_id("other");
  cluster_.Propose(0, close);
  EXPECT_TRUE(cluster_.Outcome(0).ok());
  EXPECT_TRUE(cluster_.Status().has_run()) << "another run's close does not close this one";

  close.mutable_close_run()->set_run_id("run");
  cluster_.Propose(0, close);
  const auto go = cluster_.FinishOperation();
  ASSERT_TRUE(go);
  EXPECT_EQ(go->run().run_id(), "");
  EXPECT_TRUE(cluster_.Outcome(0).ok());
  EXPECT_FALSE(cluster_.Status().has_run());
  EXPECT_EQ(cluster_.Status().state_detail(), "") << "nobody's slice waits any more";

  cluster_.Propose(0, close);
  EXPECT_TRUE(cluster_.Outcome(0).ok());
  EXPECT_FALSE(cluster_.Has(0, Kind::kGo));
}

// ---------------------------------------------------------------- queries

TEST_F(CoordinatorOperationsTest, QueriesGoToAllAndTheProposerLearnsItsPlaceAtOnce) {
  v1::Propose evaluate;
  evaluate.mutable_evaluate()->set_rows(3);
  evaluate.mutable_evaluate()->set_sample_rate(0.5);
  evaluate.mutable_evaluate()->set_query(12);
  cluster_.Propose(1, evaluate);
  EXPECT_TRUE(cluster_.Has(1, Kind::kResult));
  for (int rank = 0; rank < 2; ++rank) {
    const auto go = cluster_.NextGo(rank);
    ASSERT_TRUE(go);
    EXPECT_EQ(go->evaluate().rows(), 3);
    EXPECT_EQ(go->evaluate().sample_rate(), 0.5);
    EXPECT_EQ(go->evaluate().origin_rank(), 1);
    EXPECT_EQ(go->evaluate().query(), 12u);
  }
  v1::Propose nearest;
  nearest.mutable_nearest()->set_rows(4);
  nearest.mutable_nearest()->set_k(2);
  cluster_.Propose(1, nearest);
  const auto go = cluster_.NextGo(0);
  ASSERT_TRUE(go);
  EXPECT_EQ(go->nearest().k(), 2);
  EXPECT_EQ(go->nearest().origin_rank(), 1);
}

// ---------------------------------------------------------------- writes

TEST_F(CoordinatorOperationsTest, AWriteIsCommittedOnceWithAllRowsOfAllRanks) {
  cluster_.Staged(0, "w", 2);
  cluster_.Staged(0, "w", 3);  // in all, not on top
  cluster_.Staged(1, "w", 1);
  cluster_.Propose(0, Commit("w", 4));
  const auto go = cluster_.NextGo(0);
  ASSERT_TRUE(go);
  EXPECT_EQ(go->commit_write().write_id(), "w");
  EXPECT_EQ(go->commit_write().rows(), 4);
  cluster_.Done(0, go->sequence());
  cluster_.Propose(1, Commit("w", 4));  // a retry while it is under way
  EXPECT_FALSE(cluster_.Has(0, Kind::kResult));
  cluster_.Done(1, go->sequence());
  EXPECT_EQ(cluster_.NextResult(0)->committed_rows(), 4);
  EXPECT_EQ(cluster_.NextResult(1)->committed_rows(), 4);

  cluster_.Propose(0, Commit("w", 4));  // and after it
  EXPECT_EQ(cluster_.NextResult(0)->committed_rows(), 4);
  EXPECT_FALSE(cluster_.Has(0, Kind::kGo)) << "nothing is applied twice";
}

TEST_F(CoordinatorOperationsTest, RowsStillOnTheirWayAreWaitedFor) {
  cluster_.Staged(0, "w", 2);
  cluster_.Propose(0, Commit("w", 3));
  cluster_.Tick(absl::Milliseconds(900));
  EXPECT_FALSE(cluster_.Has(0, Kind::kResult));
  cluster_.Staged(1, "w", 1);
  EXPECT_TRUE(cluster_.Has(0, Kind::kGo));
}

TEST_F(CoordinatorOperationsTest, MissingRowsRefuseTheCommitWithBothNumbers) {
  cluster_.Staged(0, "w", 2);
  cluster_.Propose(0, Commit("w", 3));
  cluster_.Tick(absl::Seconds(1));
  const absl::Status outcome = cluster_.Outcome(0);
  EXPECT_EQ(outcome.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(outcome), HasSubstr("2 rows are staged, the commit says 3"));
  EXPECT_EQ(Reason(outcome), "staged_rows_missing");

  cluster_.Propose(0, Commit("w", 1));
  EXPECT_THAT(Message(cluster_.Outcome(0)), HasSubstr("2 rows are staged, the commit says 1"));
  EXPECT_FALSE(cluster_.Has(0, Kind::kGo));
}

TEST(CoordinatorWritesTest, WritesOfTheRestoredStateAreNotAppliedAgain) {
  ScriptedCluster cluster(2);
  cluster.SetDisks({{1, 5, 9}});
  ASSERT_TRUE(cluster.Serve({{"w", 6}}));
  cluster.Propose(0, Commit("w", 6));
  EXPECT_EQ(cluster.NextResult(0)->committed_rows(), 6);
  EXPECT_FALSE(cluster.Has(0, Kind::kGo));
}

TEST_F(CoordinatorOperationsTest, AWriteThatFailsOnEveryShardFailsAloneAndOnSomeEndsTheEpoch) {
  cluster_.Staged(0, "w", 1);
  cluster_.Propose(0, Commit("w", 1));
  auto go = cluster_.NextGo(0);
  cluster_.Done(0, go->sequence(), absl::InternalError("gone"));
  cluster_.Done(1, go->sequence(), absl::InternalError("gone"));
  EXPECT_EQ(Message(cluster_.Outcome(0)), "rank 0: gone");
  EXPECT_FALSE(cluster_.Has(0, Kind::kDisband));

  cluster_.Propose(0, Commit("w", 1));
  go = cluster_.NextGo(0);
  cluster_.Done(0, go->sequence());
  cluster_.Done(1, go->sequence(), absl::InternalError("gone"));
  EXPECT_THAT(Message(cluster_.Disbanded(1)),
              HasSubstr("write 'w' was not committed on every shard: rank 1: gone"));
}

// ---------------------------------------------------------------- checkpoints

TEST_F(CoordinatorOperationsTest, ACheckpointIsCommittedOnceItIsWholeOnEveryShard) {
  cluster_.OpenRun(1);
  ASSERT_TRUE(cluster_.Step(1));
  cluster_.Propose(1, CheckpointProposal());
  const auto go = cluster_.NextGo(0);
  ASSERT_TRUE(go);
  EXPECT_EQ(go->checkpoint().id().step(), 1);
  EXPECT_EQ(go->checkpoint().id().lineage(), cluster_.lineage());
  cluster_.Done(0, go->sequence(), absl::OkStatus(), 30);
  EXPECT_THAT(ListedSteps(), ElementsAre());
  cluster_.Done(1, go->sequence(), absl::OkStatus(), 12);
  EXPECT_TRUE(cluster_.Has(0, Kind::kCheckpointCommitted));
  EXPECT_TRUE(cluster_.Has(1, Kind::kCheckpointCommitted));
  const auto result = cluster_.NextResult(1);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->checkpoint().bytes(), 42);
  EXPECT_EQ(result->checkpoint().id().nonce(), go->checkpoint().id().nonce());
  EXPECT_NEAR(result->checkpoint().created_unix_s(), absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()),
              60);
  EXPECT_THAT(ListedSteps(), ElementsAre(1));
}

TEST_F(CoordinatorOperationsTest, ACheckpointThatFailsOnOneRankIsNotCommitted) {
  cluster_.Propose(0, CheckpointProposal());
  const auto go = cluster_.NextGo(0);
  cluster_.Done(0, go->sequence());
  cluster_.Done(1, go->sequence(), absl::ResourceExhaustedError("disk full"));
  const absl::Status outcome = cluster_.Outcome(0);
  EXPECT_EQ(outcome.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(outcome), "rank 1: disk full");
  EXPECT_FALSE(cluster_.Has(0, Kind::kCheckpointCommitted));
  EXPECT_FALSE(cluster_.Has(0, Kind::kDisband));
  EXPECT_THAT(ListedSteps(), ElementsAre());
}

TEST_F(CoordinatorOperationsTest, CheckpointsBeyondTheNumberKeptLeaveTheList) {
  cluster_.OpenRun(1);
  for (int step = 1; step <= 4; ++step) {
    ASSERT_TRUE(cluster_.Step(step));
    TakeCheckpoint();
  }
  EXPECT_THAT(ListedSteps(), ElementsAre(2, 3, 4));
}

TEST_F(CoordinatorOperationsTest, ACheckpointThatTrainersAskedForStaysUntilItIsReleased) {
  cluster_.OpenRun(1);
  const auto flagged = cluster_.Step(1, /*checkpoint=*/true);
  ASSERT_TRUE(flagged);
  cluster_.DoneEverywhere(flagged->sequence());
  for (int step = 2; step <= 5; ++step) {
    ASSERT_TRUE(cluster_.Step(step));
    TakeCheckpoint();
  }
  EXPECT_THAT(ListedSteps(), ElementsAre(1, 3, 4, 5));
  EXPECT_TRUE(List().checkpoints(0).kept());
  EXPECT_FALSE(List().checkpoints(1).kept());

  cluster_.Propose(1, ReleaseProposal(List().checkpoints(0).id()));
  const auto go = cluster_.NextGo(0);
  ASSERT_TRUE(go);
  EXPECT_EQ(CheckpointIdFromProto(go->release().id()), CheckpointIdFromProto(flagged->step().checkpoint()));
  cluster_.Done(0, go->sequence());
  cluster_.Done(1, go->sequence(), absl::InternalError("a broken disk"));
  EXPECT_EQ(Message(cluster_.Outcome(1)), "rank 1: a broken disk");
  EXPECT_TRUE(List().checkpoints(0).kept());

  cluster_.Propose(1, ReleaseProposal(List().checkpoints(0).id()));
  cluster_.DoneEverywhere(cluster_.NextGo(0)->sequence());
  EXPECT_TRUE(cluster_.Outcome(1).ok());
  EXPECT_FALSE(List().checkpoints(0).kept());
  ASSERT_TRUE(cluster_.Step(6));
  TakeCheckpoint();
  EXPECT_THAT(ListedSteps(), ElementsAre(4, 5, 6));
}

TEST_F(CoordinatorOperationsTest, OnlyWhatIsWholeEverywhereCanBeReleased) {
  cluster_.Propose(0, ReleaseProposal(CheckpointIdToProto({1, 2, 3})));
  const absl::Status outcome = cluster_.Outcome(0);
  EXPECT_EQ(outcome.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(outcome), "no checkpoint 1-2-0000000000000003 is whole on every shard");
  EXPECT_FALSE(cluster_.Has(0, Kind::kGo));
}

class CoordinatorWindowTest : public CoordinatorOperationsTest {
 protected:
  static CoordinatorOptions Options() {
    CoordinatorOptions options = ScriptedCluster::Options(2);
    options.step_log = true;
    return options;
  }
  CoordinatorWindowTest() : CoordinatorOperationsTest(Options()) {}

  std::string Window() {
    std::vector<StepRange> window;
    const v1::ListCheckpointsReply list = List();
    for (const v1::StepRange& range : list.window()) window.push_back({range.first(), range.last()});
    return Describe(window);
  }
};

TEST_F(CoordinatorWindowTest, GrowsWithTheStepsAndShrinksWhenTheLogIsCut) {
  EXPECT_EQ(Window(), "steps 0");
  cluster_.OpenRun(1);
  for (int step = 1; step <= 4; ++step) {
    EXPECT_EQ(Window(), step == 1 ? "steps 0" : absl::StrCat("steps 0 to ", step - 1));
    const auto go = cluster_.Step(step, /*checkpoint=*/step == 4);
    ASSERT_TRUE(go);
    if (step == 4) cluster_.DoneEverywhere(go->sequence());
  }
  EXPECT_EQ(Window(), "steps 4") << "the log before the only checkpoint is gone";
  for (int step = 5; step <= 8; ++step) {
    ASSERT_TRUE(cluster_.Step(step));
    EXPECT_EQ(Window(), absl::StrCat("steps 4 to ", step));
    if (step >= 6) TakeCheckpoint();
  }
  // The three newest are those of steps 6 to 8. The one of step 4 stays for its own sake, without a log.
  ASSERT_TRUE(cluster_.Step(9));
  EXPECT_EQ(Window(), "steps 4, 6 to 9");
}

TEST_F(CoordinatorWindowTest, SaysNothingWhileShardsAreMissing) {
  cluster_.Disconnect(1);
  EXPECT_EQ(Window(), "nothing");
}

class CoordinatorWithoutDirectoryTest : public CoordinatorOperationsTest {
 protected:
  static CoordinatorOptions Options() {
    CoordinatorOptions options = ScriptedCluster::Options(2);
    options.has_checkpoint_dir = false;
    return options;
  }
  CoordinatorWithoutDirectoryTest() : CoordinatorOperationsTest(Options()) {}
};

TEST_F(CoordinatorWithoutDirectoryTest, ACheckpointIsRefused) {
  cluster_.Propose(0, CheckpointProposal());
  const absl::Status outcome = cluster_.Outcome(0);
  EXPECT_EQ(outcome.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(outcome), HasSubstr("--checkpoint_dir"));
}

TEST_F(CoordinatorWithoutDirectoryTest, DrainDisbandsAtOnce) {
  cluster_.OpenRun(1);
  ASSERT_TRUE(cluster_.Step(1));
  cluster_.Propose(1, DrainProposal());
  EXPECT_TRUE(cluster_.Outcome(1).ok());
  EXPECT_FALSE(cluster_.Disbanded(0).ok());
}

// ---------------------------------------------------------------- drain

TEST_F(CoordinatorOperationsTest, DrainCheckpointsOnePositionOnAllRanksStartsNothingMoreAndDisbands) {
  cluster_.OpenRun(1);
  ASSERT_TRUE(cluster_.Step(1));
  cluster_.Propose(1, DrainProposal());
  const auto go = cluster_.NextGo(0);
  ASSERT_TRUE(go);
  ASSERT_TRUE(go->has_checkpoint());
  EXPECT_EQ(go->checkpoint().id().step(), 1);
  EXPECT_EQ(cluster_.Status().state(), v1::DRAINING);
  EXPECT_EQ(cluster_.Status().state_detail(), "draining: rank 1 was asked to stop");

  EXPECT_FALSE(cluster_.Step(2)) << "nothing more is started";
  cluster_.Propose(0, CheckpointProposal());
  EXPECT_EQ(cluster_.Outcome(0).code(), absl::StatusCode::kUnavailable);
  cluster_.Propose(0, DrainProposal());  // a second rank

  EXPECT_FALSE(cluster_.Has(1, Kind::kResult));
  cluster_.DoneEverywhere(go->sequence());
  for (int rank = 0; rank < 2; ++rank) {
    const auto result = cluster_.NextResult(rank);
    ASSERT_TRUE(result);
    EXPECT_TRUE(StatusFromProto(result->status()).ok());
    EXPECT_EQ(result->checkpoint().id().step(), 1);
    const absl::Status why = cluster_.Disbanded(rank);
    EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Message(why), "draining: rank 1 was asked to stop");
    EXPECT_EQ(Reason(why), "draining");
  }
  EXPECT_EQ(cluster_.Status().state(), v1::FORMING);
}

TEST_F(CoordinatorOperationsTest, DrainWritesNothingIfNothingHasChanged) {
  cluster_.OpenRun(1);
  const auto step = cluster_.Step(1, /*checkpoint=*/true);
  ASSERT_TRUE(step);
  cluster_.DoneEverywhere(step->sequence());
  cluster_.Propose(0, DrainProposal());
  EXPECT_FALSE(cluster_.Has(0, Kind::kGo));
  EXPECT_TRUE(cluster_.Outcome(0).ok());
  EXPECT_TRUE(cluster_.Has(1, Kind::kDisband));
}

TEST_F(CoordinatorOperationsTest, DrainWaitsForACheckpointOfThePositionThatIsUnderWay) {
  cluster_.OpenRun(1);
  const auto step = cluster_.Step(1, /*checkpoint=*/true);
  ASSERT_TRUE(step);
  cluster_.Propose(0, DrainProposal());
  EXPECT_FALSE(cluster_.Has(0, Kind::kGo));
  EXPECT_FALSE(cluster_.Has(0, Kind::kResult));
  cluster_.DoneEverywhere(step->sequence());
  EXPECT_TRUE(cluster_.Outcome(0).ok());
  EXPECT_TRUE(cluster_.Has(1, Kind::kDisband));
}

TEST_F(CoordinatorOperationsTest, DrainCoversACommittedWriteToo) {
  cluster_.Staged(0, "w", 1);
  cluster_.Propose(0, Commit("w", 1));
  ASSERT_TRUE(cluster_.FinishOperation());
  cluster_.Propose(0, DrainProposal());
  const auto go = cluster_.NextGo(0);
  ASSERT_TRUE(go);
  EXPECT_TRUE(go->has_checkpoint());
}

TEST_F(CoordinatorOperationsTest, DrainTellsOfAFailedCheckpointAndDisbandsAllTheSame) {
  cluster_.OpenRun(1);
  ASSERT_TRUE(cluster_.Step(1));
  cluster_.Propose(0, DrainProposal());
  const auto go = cluster_.NextGo(0);
  ASSERT_TRUE(go);
  cluster_.Done(0, go->sequence());
  cluster_.Done(1, go->sequence(), absl::ResourceExhaustedError("disk full"));
  EXPECT_EQ(Message(cluster_.Outcome(0)), "rank 1: disk full");
  EXPECT_TRUE(cluster_.Has(1, Kind::kDisband));
}

TEST_F(CoordinatorOperationsTest, ADrainedGroupFormsAgainFromItsLastCheckpoint) {
  cluster_.OpenRun(1);
  ASSERT_TRUE(cluster_.Step(1));
  cluster_.Propose(1, DrainProposal());
  const auto go = cluster_.NextGo(0);
  cluster_.DoneEverywhere(go->sequence());
  cluster_.SetDisks({CheckpointIdFromProto(go->checkpoint().id())});
  const auto form = cluster_.Serve();
  ASSERT_TRUE(form);
  EXPECT_EQ(form->origin().checkpoint().nonce(), go->checkpoint().id().nonce());
}

TEST_F(CoordinatorOperationsTest, AProposalOfAnotherEpochIsUnavailable) {
  v1::ShardMessage message;
  *message.mutable_propose() = CheckpointProposal();
  message.mutable_propose()->set_epoch(cluster_.epoch() + 1);
  cluster_.Send(0, message);
  EXPECT_EQ(cluster_.Outcome(0).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ccs
