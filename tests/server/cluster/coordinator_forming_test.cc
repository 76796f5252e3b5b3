// How a group comes together, falls apart and comes together again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/cluster/coordinator_fixture.h"

namespace ccs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = ScriptedCluster::Kind;

const CheckpointId kOld{1, 10, 7};
const CheckpointId kNew{1, 20, 8};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(CoordinatorFormingTest, FormsOnceAllAreThereAndServesOnceAllHaveFormed) {
  ScriptedCluster cluster(3);
  cluster.Register(0);
  cluster.Register(2);
  EXPECT_FALSE(cluster.Has(0, Kind::kForm));
  EXPECT_EQ(cluster.Status().state(), v1::FORMING);
  EXPECT_EQ(cluster.Status().state_detail(), "waiting for ranks 1");

  cluster.Register(1);
  for (int rank = 1; rank < 3; ++rank) {
    const auto form = cluster.Next(rank, Kind::kForm);
    ASSERT_TRUE(form);
    EXPECT_EQ(form->form().lineage(), 1u);
    EXPECT_FALSE(form->form().origin().has_checkpoint());
    ASSERT_EQ(form->form().layout().shards_size(), 3);
    EXPECT_EQ(form->form().layout().shards(1).address(), "host1:8001");
    EXPECT_EQ(form->form().layout().shards(1).class_start(), 4);
    EXPECT_EQ(form->form().layout().shards(1).num_classes(), 3);
  }
  EXPECT_EQ(cluster.Status(2).state_detail(), "ranks 0, 1, 2 start from initial weights");
  ASSERT_TRUE(cluster.FinishForming());
  for (int rank = 0; rank < 3; ++rank) {
    const auto serve = cluster.Next(rank, Kind::kServe);
    ASSERT_TRUE(serve);
    EXPECT_EQ(serve->serve().epoch(), cluster.epoch());
  }
  EXPECT_EQ(cluster.Status().state(), v1::SERVING);
}

TEST(CoordinatorFormingTest, GivesEveryRankAllBlobsInRankOrder) {
  ScriptedCluster cluster(2);
  cluster.RegisterAll();
  v1::ShardMessage message;
  message.mutable_rendezvous()->set_epoch(1);
  message.mutable_rendezvous()->set_blob("one");
  cluster.Send(1, message);
  EXPECT_FALSE(cluster.Has(1, Kind::kPeers));
  message.mutable_rendezvous()->set_blob("zero");
  cluster.Send(0, message);
  for (int rank = 0; rank < 2; ++rank) {
    const auto peers = cluster.Next(rank, Kind::kPeers);
    ASSERT_TRUE(peers);
    EXPECT_THAT(peers->peers().blobs(), testing::ElementsAre("zero", "one"));
  }
}

TEST(CoordinatorFormingTest, MessagesOfAnotherEpochChangeNothing) {
  ScriptedCluster cluster(1);
  cluster.RegisterAll();
  v1::ShardMessage formed;
  formed.mutable_formed()->set_epoch(99);
  cluster.Send(0, formed);
  v1::ShardMessage rendezvous;
  rendezvous.mutable_rendezvous()->set_epoch(99);
  cluster.Send(0, rendezvous);
  EXPECT_FALSE(cluster.Has(0, Kind::kServe));
  EXPECT_FALSE(cluster.Has(0, Kind::kPeers));
}

TEST(CoordinatorFormingTest, RefusesARankOutOfRange) {
  ScriptedCluster cluster(2);
  for (const int rank : {-1, 2}) {
    v1::Register registration = cluster.Registration(0);
    registration.set_rank(rank);
    cluster.Register(0, registration);
    const absl::Status refusal = cluster.Refusal(0);
    EXPECT_EQ(refusal.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Message(refusal), "rank " + std::to_string(rank) + " is not in 0..1");
  }
}

TEST(CoordinatorFormingTest, RefusesAnotherNumberOfShardsVersionOrSpecNamingBoth) {
  ScriptedCluster cluster(2);
  v1::Register shards = cluster.Registration(1);
  shards.set_num_shards(3);
  cluster.Register(1, shards);
  EXPECT_EQ(Message(cluster.Refusal(1)), "number of shards differs: the coordinator has 2, rank 1 has 3");

  v1::Register version = cluster.Registration(1);
  version.set_version("2.0");
  cluster.Register(1, version);
  EXPECT_EQ(Message(cluster.Refusal(1)), "version differs: the coordinator is 1.0, rank 1 is 2.0");

  v1::Register spec = cluster.Registration(1);
  spec.mutable_spec()->set_dim(8);
  cluster.Register(1, spec);
  const absl::Status refusal = cluster.Refusal(1);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refusal), AllOf(HasSubstr("rank 1"), HasSubstr("dim: 4 here, 8 there")));
}

TEST(CoordinatorFormingTest, RefusesASecondProcessForARankAndKeepsTheFirst) {
  ScriptedCluster cluster(2);
  cluster.Register(1);
  cluster.Connect(7);
  v1::Register other = cluster.Registration(1);
  other.set_process_nonce(555);
  other.set_address("elsewhere:1");
  cluster.Register(7, other);
  const absl::Status refusal = cluster.Refusal(7);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Message(refusal), "rank 1 is taken by host1:8001, elsewhere:1 wants it too");
  cluster.Register(0);
  EXPECT_TRUE(cluster.Has(1, Kind::kForm));
}

TEST(CoordinatorFormingTest, TakesAProcessThatComesBackOnANewStream) {
  ScriptedCluster cluster(2);
  ASSERT_TRUE(cluster.Serve());
  cluster.Connect(7);
  cluster.Register(7, cluster.Registration(1));
  EXPECT_THAT(Message(cluster.Disbanded(0)), HasSubstr("rank 1 has come back"));
  cluster.Register(0);
  EXPECT_TRUE(cluster.Has(7, Kind::kForm));
}

TEST(CoordinatorFormingTest, ARegistrationOutOfTurnEndsTheEpochAndCountsOnceItIsOver) {
  ScriptedCluster cluster(2);
  ASSERT_TRUE(cluster.Serve());
  cluster.Register(1);
  EXPECT_EQ(Message(cluster.Disbanded(1)), "rank 1 registers anew");
  EXPECT_EQ(cluster.Status().state_detail(), "waiting for ranks 0, 1");
  cluster.Register(1);
  cluster.Register(1);  // harmless while nothing has formed
  EXPECT_FALSE(cluster.Has(1, Kind::kDisband));
  cluster.Register(0);
  EXPECT_TRUE(cluster.FinishForming());
}

TEST(CoordinatorFormingTest, ResumesFromTheNewestCommonCheckpointUnderANewLineage) {
  ScriptedCluster cluster(2);
  cluster.SetDisk(0, {kOld, kNew});
  cluster.SetDisk(1, {kOld});
  const auto form = cluster.Serve();
  ASSERT_TRUE(form);
  EXPECT_EQ(CheckpointIdFromProto(form->origin().checkpoint()), kOld);
  EXPECT_EQ(form->lineage(), 2u);
  EXPECT_EQ(cluster.Status().position().step(), 10);
  EXPECT_EQ(cluster.Status().position().lineage(), 2u);
}

TEST(CoordinatorFormingTest, RefusesAllWhenNoCheckpointIsWholeOnEveryRank) {
  ScriptedCluster cluster(2);
  cluster.SetDisk(0, {kOld, kNew});
  cluster.RegisterAll();
  for (int rank = 0; rank < 2; ++rank) {
    const absl::Status refusal = cluster.Refusal(rank);
    EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(refusal), AllOf(HasSubstr("rank 0 has 1-20-0000000000000008 and 1 older"),
                                        HasSubstr("rank 1 has none"), HasSubstr("--resume=none")));
  }
}

TEST(CoordinatorFormingTest, RefusesAllWhenTheAskedStepIsNotThere) {
  CoordinatorOptions options = ScriptedCluster::Options(1);
  options.resume = {ResumePolicy::Kind::kStep, 15};
  ScriptedCluster cluster(options);
  cluster.SetDisks({kOld, kNew});
  cluster.RegisterAll();
  const absl::Status refusal = cluster.Refusal(0);
  EXPECT_EQ(refusal.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(refusal),
            "step 15 cannot be gone back to; the checkpoints and the step log hold steps 10, 20");
}

TEST(CoordinatorFormingTest, ALostStreamDisbandsAndTheGroupFormsAgainFromTheLineagesNewestCheckpoint) {
  ScriptedCluster cluster(2);
  cluster.SetDisks({kOld});
  ASSERT_TRUE(cluster.Serve());
  const uint64_t lineage = cluster.lineage();
  const uint64_t epoch = cluster.epoch();
  cluster.OpenRun(1);
  cluster.Disconnect(1);
  const absl::Status why = cluster.Disbanded(0);
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(why), "rank 1 left: reset by peer");
  EXPECT_EQ(cluster.Status().state_detail(), "waiting for ranks 0, 1");

  const CheckpointId own{lineage, 13, 1};
  cluster.SetDisks({kOld, own, CheckpointId{lineage + 5, 99, 1}});  // the last one is of nobody here
  cluster.Connect(1);
  const auto form = cluster.Serve();
  ASSERT_TRUE(form);
  EXPECT_EQ(CheckpointIdFromProto(form->origin().checkpoint()), own);
  EXPECT_EQ(form->lineage(), lineage + 6);
  EXPECT_EQ(form->epoch(), epoch + 1);
  EXPECT_FALSE(cluster.Status().has_run()) << "runs end with the epoch";
}

TEST(CoordinatorFormingTest, GoesBackToWhereTheLineageBeganIfItHasNoCheckpointOfItsOwn) {
  CoordinatorOptions options = ScriptedCluster::Options(1);
  options.resume = {ResumePolicy::Kind::kStep, 10};
  ScriptedCluster cluster(options);
  cluster.SetDisks({kOld, kNew});
  ASSERT_TRUE(cluster.Serve());
  cluster.Disconnect(0);
  cluster.Connect(0);
  const auto form = cluster.Serve();
  ASSERT_TRUE(form);
  EXPECT_EQ(CheckpointIdFromProto(form->origin().checkpoint()), kOld)
      << "not the newer one of the abandoned lineage";
  EXPECT_EQ(form->lineage(), 3u);
}

TEST(CoordinatorFormingTest, RefusesAllWhenARankHasLostItsDisk) {
  ScriptedCluster cluster(2);
  cluster.SetDisks({kOld});
  ASSERT_TRUE(cluster.Serve());
  cluster.Disconnect(1);
  cluster.Connect(1);
  cluster.SetDisk(1, {});
  cluster.RegisterAll();
  EXPECT_THAT(Message(cluster.Refusal(0)), HasSubstr("rank 1 has none"));
}

TEST(CoordinatorFormingTest, GoesBackToInitialWeightsIfNothingWasEverWritten) {
  ScriptedCluster cluster(2);
  ASSERT_TRUE(cluster.Serve());
  cluster.Disconnect(1);
  cluster.Connect(1);
  const auto form = cluster.Serve();
  ASSERT_TRUE(form);
  EXPECT_FALSE(form->origin().has_checkpoint());
  EXPECT_EQ(form->lineage(), 2u);
}

TEST(CoordinatorFormingTest, GoesOnFromMemoryWithTheRunWhereAllRanksStandAlike) {
  ScriptedCluster cluster(2);
  ASSERT_TRUE(cluster.Serve());
  cluster.Disconnect(1);
  cluster.Connect(1);
  cluster.SetMemory({1, 7, 9});
  const auto form = cluster.Serve();
  ASSERT_TRUE(form);
  EXPECT_TRUE(form->from_memory());
  EXPECT_FALSE(form->begins_lineage());
  EXPECT_EQ(form->lineage(), 1u);
  EXPECT_EQ(cluster.Status().position().step(), 7);
  EXPECT_EQ(cluster.Status().run().run_id(), "kept");
}

TEST(CoordinatorFormingTest, DisbandsAgainWhenTheRanksComeToDifferentStates) {
  ScriptedCluster cluster(2);
  cluster.RegisterAll();
  ASSERT_TRUE(cluster.Next(0, Kind::kForm));
  v1::ShardMessage message;
  message.mutable_formed()->set_epoch(1);
  cluster.Send(0, message);
  message.mutable_formed()->mutable_position()->set_index(1);
  cluster.Send(1, message);
  EXPECT_THAT(Message(cluster.Disbanded(0)), HasSubstr("different states"));
}

TEST(CoordinatorFormingTest, AMissedHeartbeatDisbands) {
  ScriptedCluster cluster(2);
  ASSERT_TRUE(cluster.Serve());
  cluster.TickAlive(absl::Seconds(9));
  cluster.Heartbeat(0);
  cluster.Tick(absl::Seconds(1));
  EXPECT_FALSE(cluster.Has(0, Kind::kDisband)) << "10 s of silence are allowed";
  cluster.Tick(absl::Milliseconds(1));
  EXPECT_EQ(Message(cluster.Disbanded(0)), "rank 1 was silent for 10.001s");
  EXPECT_TRUE(cluster.Has(1, Kind::kDisband)) << "it may only have been stopped for a while";
}

TEST(CoordinatorFormingTest, ASilentShardLosesItsPlaceBeforeTheGroupForms) {
  ScriptedCluster cluster(2);
  cluster.Register(1);
  cluster.Tick(absl::Seconds(11));
  EXPECT_TRUE(cluster.Has(1, Kind::kDisband));
  EXPECT_EQ(cluster.Status().state_detail(), "waiting for ranks 0, 1");
}

TEST(CoordinatorFormingTest, ABusyEngineThatGetsNoFurtherDisbands) {
  CoordinatorOptions options = ScriptedCluster::Options(1);
  options.stall_timeout = absl::Seconds(20);
  ScriptedCluster cluster(options);
  ASSERT_TRUE(cluster.Serve());
  for (int second = 0; second < 20; ++second) {
    cluster.Heartbeat(0, "pass 1", second);
    cluster.Tick(absl::Seconds(1));
  }
  for (int second = 0; second < 25; ++second) {
    cluster.Heartbeat(0);
    cluster.Tick(absl::Seconds(1));
  }
  EXPECT_FALSE(cluster.Has(0, Kind::kDisband)) << "it moved, or had nothing to do";
  for (int second = 0; second < 21; ++second) {
    cluster.Heartbeat(0, "pass 2", 5);
    cluster.Tick(absl::Seconds(1));
  }
  EXPECT_THAT(Message(cluster.Disbanded(0)), HasSubstr("rank 0 has been stuck in 'pass 2'"));
}

TEST(CoordinatorFormingTest, AnEpochThatFailsWhileItServesIsFormedAgain) {
  ScriptedCluster cluster(2);
  ASSERT_TRUE(cluster.Serve());
  cluster.EpochFailed(1, absl::UnavailableError("peer 0 went away"));
  EXPECT_EQ(Message(cluster.Disbanded(0)), "rank 1: peer 0 went away");
  EXPECT_TRUE(cluster.Has(1, Kind::kDisband));
  EXPECT_TRUE(cluster.Serve());
}

TEST(CoordinatorFormingTest, AGroupThatBreaksBeforeItServesWaitsBeforeItTriesAgain) {
  ScriptedCluster cluster(1);
  cluster.RegisterAll();
  const auto form = cluster.Next(0, Kind::kForm);
  ASSERT_TRUE(form);
  v1::ShardMessage failed;
  failed.mutable_epoch_failed()->set_epoch(form->form().epoch());
  *failed.mutable_epoch_failed()->mutable_status() = StatusToProto(absl::UnavailableError("no route"));
  cluster.Send(0, failed);
  cluster.Register(0);
  EXPECT_FALSE(cluster.Has(0, Kind::kForm));
  EXPECT_EQ(cluster.Status().state_detail(), "another try soon, after: rank 0: no route");
  cluster.Tick(absl::Milliseconds(499));
  EXPECT_FALSE(cluster.Has(0, Kind::kForm));
  cluster.Tick(absl::Milliseconds(1));
  EXPECT_TRUE(cluster.Has(0, Kind::kForm));
}

TEST(CoordinatorFormingTest, AStateThatDoesNotFitRefusesAll) {
  ScriptedCluster cluster(2);
  cluster.RegisterAll();
  v1::ShardMessage failed;
  failed.mutable_epoch_failed()->set_epoch(1);
  *failed.mutable_epoch_failed()->mutable_status() =
      StatusToProto(absl::FailedPreconditionError("the checkpoint is of dim 8, the spec says 4"));
  cluster.Send(1, failed);
  for (int rank = 0; rank < 2; ++rank) {
    const absl::Status refusal = cluster.Refusal(rank);
    EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Message(refusal), "rank 1: the checkpoint is of dim 8, the spec says 4");
  }
}

TEST(CoordinatorFormingTest, StatusShowsEveryShardAndTheNewestLoss) {
  ScriptedCluster cluster(2);
  cluster.SetDisks({kOld});
  ASSERT_TRUE(cluster.Serve());
  v1::ShardMessage beat;
  beat.mutable_heartbeat()->set_step(12);
  beat.mutable_heartbeat()->set_loss(3.5);
  beat.mutable_heartbeat()->set_activity("pass 2");
  cluster.Send(1, beat);
  cluster.Tick(absl::Seconds(2));
  const v1::StatusReply status = cluster.Status();
  EXPECT_EQ(status.version(), "1.0");
  EXPECT_EQ(status.loss(), 3.5);
  ASSERT_EQ(status.shards_size(), 2);
  EXPECT_EQ(status.shards(1).info().address(), "host1:8001");
  EXPECT_EQ(status.shards(1).info().class_start(), 5);
  EXPECT_TRUE(status.shards(1).connected());
  EXPECT_EQ(status.shards(1).step(), 12);
  EXPECT_EQ(status.shards(1).activity(), "pass 2");
  EXPECT_NEAR(status.shards(1).heartbeat_age_s(), 2, 1e-9);
  EXPECT_EQ(CheckpointIdFromProto(status.last_checkpoint().id()), kOld);
  EXPECT_EQ(status.last_checkpoint().bytes(), 20) << "of both shards";
}

TEST(CoordinatorFormingTest, ProposalsWhileFormingAreUnavailable) {
  ScriptedCluster cluster(2);
  cluster.Register(0);
  cluster.Propose(0, ScriptedCluster::OpenRunProposal("run", 0, 1, 1));
  const absl::Status outcome = cluster.Outcome(0);
  EXPECT_EQ(outcome.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(outcome), "forming: waiting for ranks 1");
}

TEST(CoordinatorFormingTest, AnswersHeartbeatsAlsoOfShardsThatAreNotRegistered) {
  ScriptedCluster cluster(2);
  cluster.Heartbeat(1);
  EXPECT_TRUE(cluster.Has(1, Kind::kHeartbeat));
}

}  // namespace
}  // namespace ccs
