#include "server/cluster/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "server/engine/error_info.h"
#include "tests/server/cluster/member_rig.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using Kind = ScriptedCoordinator::Kind;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Lists what it is told to; nothing else is asked of it here.
class ListedCheckpoints : public CheckpointStore {
 public:
  absl::StatusOr<std::vector<StoredCheckpoint>> List() override {
    if (failures-- > 0) return absl::InternalError("the disk is away");
    StoredCheckpoint checkpoint;
    checkpoint.header.id = {1, 20, 9};
    checkpoint.header.created = absl::FromUnixSeconds(1000);
    checkpoint.bytes = 77;
    return std::vector<StoredCheckpoint>{checkpoint};
  }
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const CheckpointHeader&,
                                                           const std::optional<CheckpointId>&) override {
    return absl::InternalError("not here");
  }
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId&) override {
    return absl::InternalError("not here");
  }
  absl::StatusOr<std::vector<StoredCheckpoint>> Prune(const CheckpointId&, int) override {
    return absl::InternalError("not here");
  }
  absl::Status Release(const CheckpointId&) override { return absl::InternalError("not here"); }

  int failures = 0;
};

class MemberTest : public testing::Test {
 protected:
  void Start(const MemberOptions& options = MemberRig::Options(), CheckpointStore* checkpoints = nullptr) {
    rig_ = std::make_unique<MemberRig>(options, &coordinator_, checkpoints);
  }
  Member& member() { return rig_->member; }

  void Serve(uint64_t epoch = 1) {
    ASSERT_TRUE(coordinator_.Next(Kind::kRegister));
    coordinator_.Form(epoch);
    ASSERT_TRUE(coordinator_.Next(Kind::kRendezvous));
    coordinator_.Peers(epoch, "own blob");
    ASSERT_TRUE(coordinator_.Next(Kind::kFormed));
    coordinator_.Serve(epoch);
    ASSERT_TRUE(Eventually([this] { return member().serving(); }));
  }
  void OpenRun(uint64_t sequence) {
    v1::Go go;
    go.set_epoch(1);
    go.set_sequence(sequence);
    go.mutable_run()->set_run_id("run");
    go.mutable_run()->set_num_trainers(1);
    go.mutable_run()->add_incarnations(5);
    coordinator_.Go(go);
    const auto done = coordinator_.Next(Kind::kOperationDone);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->operation_done().sequence(), sequence);
    EXPECT_TRUE(StatusFromProto(done->operation_done().status()).ok());
  }
  std::future<absl::StatusOr<std::shared_ptr<const SliceReply>>> Submit() {
    Slice slice;
    slice.run_id = "run";
    slice.incarnation = 5;
    slice.lineage = 3;
    slice.step = 1;
    slice.params.learning_rate = 0.1f;
    slice.features = {1, 0, 0, 0, 0, 1, 0, 0};
    slice.labels = {3, 4};
    slice.digest = 1;
    slice.deadline = absl::Now() + absl::Seconds(30);
    auto promise = std::make_shared<std::promise<absl::StatusOr<std::shared_ptr<const SliceReply>>>>();
    rig_->assembler.Submit(slice, [promise](auto reply) { promise->set_value(std::move(reply)); });
    return promise->get_future();
  }
  std::future<absl::StatusOr<v1::Result>> Propose(v1::Propose proposal) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::Result>>>();
    member().Propose(std::move(proposal), [promise](auto result) { promise->set_value(std::move(result)); });
    return promise->get_future();
  }
  static v1::Propose Checkpoint() {
    v1::Propose proposal;
    proposal.mutable_checkpoint();
    return proposal;
  }
  v1::Go StepGo(int version) {
    v1::Go go;
    go.set_epoch(1);
    go.set_sequence(2);
    go.mutable_step()->set_step(1);
    go.mutable_step()->mutable_params()->set_learning_rate(0.1f);
    go.mutable_step()->add_rows_per_rank(2);
    go.mutable_step()->add_slices()->set_version(version);
    return go;
  }

  ScriptedCoordinator coordinator_;
  std::unique_ptr<MemberRig> rig_;
};

TEST_F(MemberTest, ConnectsUntilTheCoordinatorAnswersThenRegistersWithItsCheckpoints) {
  ListedCheckpoints checkpoints;
  coordinator_.RefuseNext(2);
  Start(MemberRig::Options(), &checkpoints);
  EXPECT_TRUE(Eventually([this] { return coordinator_.attempts() >= 1; }));
  const auto message = coordinator_.Next(Kind::kRegister);
  ASSERT_TRUE(message);
  EXPECT_EQ(coordinator_.attempts(), 3);
  const v1::Register& registration = message->register_();
  EXPECT_EQ(registration.address(), "here:1");
  EXPECT_EQ(registration.process_nonce(), 11u);
  ASSERT_EQ(registration.checkpoints_size(), 1);
  EXPECT_EQ(CheckpointIdFromProto(registration.checkpoints(0).id()), (CheckpointId{1, 20, 9}));
  EXPECT_EQ(registration.checkpoints(0).bytes(), 77);
  EXPECT_EQ(registration.checkpoints(0).created_unix_s(), 1000);
}

TEST_F(MemberTest, SaysThatTheCoordinatorDoesNotAnswer) {
  coordinator_.RefuseNext(1000);
  Start();
  EXPECT_TRUE(
      Eventually([this] { return member().state() == "the coordinator does not answer: nobody is there"; }));
  EXPECT_FALSE(member().serving());
}

TEST_F(MemberTest, RegistersOnlyOnceItsCheckpointsCanBeRead) {
  ListedCheckpoints checkpoints;
  checkpoints.failures = 1;
  Start(MemberRig::Options(), &checkpoints);
  const auto message = coordinator_.Next(Kind::kRegister);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->register_().checkpoints_size(), 1);
}

TEST_F(MemberTest, FormsThroughTheRendezvousAndServes) {
  Start();
  ASSERT_TRUE(coordinator_.Next(Kind::kRegister));
  coordinator_.Form(1);
  const auto rendezvous = coordinator_.Next(Kind::kRendezvous);
  ASSERT_TRUE(rendezvous);
  EXPECT_EQ(rendezvous->rendezvous().epoch(), 1u);
  EXPECT_EQ(rendezvous->rendezvous().blob(), "own blob");
  EXPECT_EQ(member().layout().shards_size(), 0) << "not before it serves";
  coordinator_.Peers(7, "of another epoch");
  coordinator_.Peers(1, "everybody's");
  ASSERT_TRUE(coordinator_.Next(Kind::kFormed));
  EXPECT_THAT(rig_->peers(), ElementsAre("everybody's"));
  EXPECT_FALSE(member().serving());
  coordinator_.Serve(1);
  ASSERT_TRUE(Eventually([this] { return member().serving(); }));
  EXPECT_EQ(member().layout().shards(0).address(), "here:1");
  EXPECT_EQ(rig_->assembler.position().lineage, 3u);
  EXPECT_EQ(rig_->assembler.position().step, 0);
  EXPECT_TRUE(Eventually([this] { return member().state() == "serving"; }));
}

TEST_F(MemberTest, ADisbandedGroupEndsTheRendezvousAtOnce) {
  Start();
  ASSERT_TRUE(coordinator_.Next(Kind::kRegister));
  coordinator_.Form(1);
  ASSERT_TRUE(coordinator_.Next(Kind::kRendezvous));
  coordinator_.Disband(absl::UnavailableError("rank 1 left"));
  EXPECT_TRUE(coordinator_.Next(Kind::kRegister)) << "the engine's own deadline is a minute";
  EXPECT_TRUE(rig_->peers().empty());
}

TEST_F(MemberTest, TellsWhatTheGroupWaitsFor) {
  Start();
  const auto proposal = coordinator_.Next(Kind::kPropose);
  ASSERT_TRUE(proposal);
  ASSERT_TRUE(proposal->propose().has_status());
  v1::Result result;
  result.set_token(proposal->propose().token());
  result.mutable_cluster()->set_state(v1::FORMING);
  result.mutable_cluster()->set_state_detail("waiting for ranks 1, 2");
  coordinator_.Result(result);
  EXPECT_TRUE(Eventually([this] { return member().state() == "forming: waiting for ranks 1, 2"; }));
}

TEST_F(MemberTest, HeartbeatsTellTheEnginesProgress) {
  Start();
  Serve();
  ASSERT_TRUE(Eventually([this] {
    const auto beat = coordinator_.Next(Kind::kHeartbeat);
    return beat && beat->heartbeat().activity() == "idle" && beat->heartbeat().progress() > 0;
  }));
}

TEST_F(MemberTest, CarriesAStepFromTheTrainerToTheEngineAndBack) {
  Start();
  Serve();
  OpenRun(1);
  auto reply = Submit();
  const auto ready = coordinator_.Next(Kind::kSliceReady);
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->slice_ready().epoch(), 1u);
  EXPECT_EQ(ready->slice_ready().rows(), 2);
  EXPECT_EQ(ready->slice_ready().attempt(), 1);
  EXPECT_NEAR(ready->slice_ready().wait_ms(), 30'000, 10'000);
  v1::Go stale;  // would close the run and fail the slice
  stale.set_epoch(9);
  stale.mutable_run();
  coordinator_.Go(stale);
  coordinator_.Go(StepGo(ready->slice_ready().version()));
  const auto result = reply.get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT((*result)->loss, 0);
  EXPECT_EQ((*result)->feature_grad.size(), 8u);
}

TEST_F(MemberTest, AFailedAttemptReachesTheTrainerWithItsDetails) {
  Start();
  Serve();
  OpenRun(1);
  auto reply = Submit();
  ASSERT_TRUE(coordinator_.Next(Kind::kSliceReady));
  v1::CoordinatorMessage message;
  message.mutable_step_failed()->set_epoch(1);
  message.mutable_step_failed()->set_step(1);
  message.mutable_step_failed()->set_attempt(1);
  ErrorInfo info;
  info.reason = "missing_trainers";
  info.missing_trainers = {2};
  *message.mutable_step_failed()->mutable_status() =
      StatusToProto(WithErrorInfo(absl::DeadlineExceededError("missing"), info));
  coordinator_.Send(message);
  const auto result = reply.get();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(GetErrorInfo(result.status())->missing_trainers, ElementsAre(2));
}

TEST_F(MemberTest, AGoForASliceThatIsNotThereFailsTheEpoch) {
  Start();
  Serve();
  OpenRun(1);
  coordinator_.Go(StepGo(4));
  const auto failed = coordinator_.Next(Kind::kEpochFailed);
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->epoch_failed().epoch(), 1u);
  EXPECT_EQ(StatusFromProto(failed->epoch_failed().status()).code(), absl::StatusCode::kInternal);
}

TEST_F(MemberTest, TellsOfStagedRowsAndOfFinishedOperationsInTheCurrentEpochOnly) {
  Start();
  Serve();
  member().WriteStaged("w", 3);
  const auto staged = coordinator_.Next(Kind::kWriteStaged);
  ASSERT_TRUE(staged);
  EXPECT_EQ(staged->write_staged().epoch(), 1u);
  EXPECT_EQ(staged->write_staged().write_id(), "w");
  EXPECT_EQ(staged->write_staged().rows(), 3);
  member().OperationDone(8, absl::ResourceExhaustedError("disk full"), 5);
  const auto done = coordinator_.Next(Kind::kOperationDone);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->operation_done().sequence(), 8u);
  EXPECT_EQ(done->operation_done().bytes(), 5);
  EXPECT_EQ(StatusFromProto(done->operation_done().status()), absl::ResourceExhaustedError("disk full"));

  coordinator_.Disband(absl::UnavailableError("over"));
  ASSERT_TRUE(coordinator_.Next(Kind::kRegister));
  member().WriteStaged("late", 1);
  coordinator_.Form(2);
  const auto next = coordinator_.Next(Kind::kRendezvous);  // would come after the late message
  ASSERT_TRUE(next);
  member().WriteStaged("in epoch 2", 1);
  EXPECT_EQ(coordinator_.Next(Kind::kWriteStaged)->write_staged().write_id(), "in epoch 2");
}

TEST_F(MemberTest, DisbandFailsWhatWaitsDropsStagedRowsAndRegistersAgain) {
  Start();
  Serve();
  OpenRun(1);
  auto reply = Submit();
  auto result = Propose(Checkpoint());
  const std::vector<float> row(4, 1.0f);
  ASSERT_TRUE(rig_->staged_writes.Add("w", {2}, row).ok());
  coordinator_.Disband(absl::UnavailableError("rank 1 left"));
  EXPECT_EQ(Message(result.get().status()), "rank 1 left");
  const absl::Status failed = reply.get().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(coordinator_.Next(Kind::kRegister));
  EXPECT_FALSE(member().serving());
  EXPECT_EQ(member().layout().shards_size(), 0);
  EXPECT_TRUE(rig_->staged_writes.Take("w").empty());
}

TEST_F(MemberTest, ServesAgainAfterDisbandAndAfterALostStream) {
  Start();
  Serve(1);
  coordinator_.Disband(absl::UnavailableError("rank 1 left"));
  Serve(2);
  auto result = Propose(Checkpoint());
  ASSERT_TRUE(coordinator_.NextProposal());
  coordinator_.Close(absl::UnavailableError("connection reset"));
  EXPECT_EQ(Message(result.get().status()), "the coordinator is lost: connection reset");
  EXPECT_TRUE(Eventually([this] { return coordinator_.attempts() == 2 && coordinator_.connected(); }));
  Serve(1);  // a new coordinator counts from the beginning
}

TEST_F(MemberTest, ASilentCoordinatorIsLeft) {
  MemberOptions options = MemberRig::Options();
  options.heartbeat_timeout = absl::Milliseconds(150);
  Start(options);
  EXPECT_TRUE(Eventually([this] { return coordinator_.attempts() >= 2; }));
}

TEST_F(MemberTest, ACoordinatorThatAnswersHeartbeatsIsNotLeft) {
  MemberOptions options = MemberRig::Options();
  options.heartbeat_timeout = absl::Milliseconds(500);
  Start(options);
  for (int beats = 0; beats < 50; ++beats) {  // a second and more
    ASSERT_TRUE(coordinator_.Next(Kind::kHeartbeat));
    v1::CoordinatorMessage beat;
    beat.mutable_heartbeat();
    coordinator_.Send(beat);
  }
  EXPECT_EQ(coordinator_.attempts(), 1);
}

TEST_F(MemberTest, ARefusalEndsTheMemberWithItsReason) {
  Start();
  ASSERT_TRUE(coordinator_.Next(Kind::kRegister));
  coordinator_.Refuse(absl::FailedPreconditionError("model spec differs"));
  const absl::Status why = member().Wait();
  EXPECT_EQ(why.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(why), "model spec differs");
  EXPECT_EQ(member().state(), "model spec differs");
  EXPECT_EQ(Propose(Checkpoint()).get().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(MemberTest, ATakenRankIsAskedForAgainUntilTheOtherMustHaveBeenMissed) {
  MemberOptions options = MemberRig::Options();
  options.heartbeat_timeout = absl::Milliseconds(200);
  Start(options);
  int registrations = 0;
  while (coordinator_.Next(Kind::kRegister)) {
    ++registrations;
    coordinator_.Refuse(absl::AlreadyExistsError("rank 0 is taken"));
    if (registrations == 3) break;
  }
  EXPECT_EQ(registrations, 3);
  std::future<absl::Status> ended = std::async(std::launch::async, [this] { return member().Wait(); });
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (ended.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready &&
         std::chrono::steady_clock::now() < give_up) {
    coordinator_.Refuse(absl::AlreadyExistsError("rank 0 is taken"));
  }
  EXPECT_EQ(ended.get().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(MemberTest, ATakenRankThatBecomesFreeServes) {
  Start();
  ASSERT_TRUE(coordinator_.Next(Kind::kRegister));
  coordinator_.Refuse(absl::AlreadyExistsError("rank 0 is taken"));
  Serve();
}

TEST_F(MemberTest, ProposalsAreUnavailableWhileFormingButQuestionsGoThrough) {
  Start();
  ASSERT_TRUE(coordinator_.Next(Kind::kRegister));
  const absl::Status refused = Propose(Checkpoint()).get().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorInfo(refused)->reason, "not_serving");

  v1::Propose list;
  list.mutable_list_checkpoints();
  auto listed = Propose(list);
  const auto proposal = coordinator_.NextProposal();
  ASSERT_TRUE(proposal);
  ASSERT_TRUE(proposal->has_list_checkpoints());
  v1::Result result;
  result.set_token(proposal->token());
  result.mutable_checkpoints()->add_checkpoints();
  coordinator_.Result(result);
  EXPECT_EQ(listed.get()->checkpoints().checkpoints_size(), 1);
}

TEST_F(MemberTest, AProposalGetsItsOwnResultOrRefusal) {
  Start();
  Serve();
  auto first = Propose(Checkpoint());
  const auto one = coordinator_.NextProposal();
  auto second = Propose(Checkpoint());
  const auto two = coordinator_.NextProposal();
  ASSERT_TRUE(one && two);
  EXPECT_EQ(one->epoch(), 1u);
  v1::Result refusal;
  refusal.set_token(two->token());
  *refusal.mutable_status() = StatusToProto(absl::FailedPreconditionError("no directory"));
  coordinator_.Result(refusal);
  coordinator_.Result(refusal);  // a second answer has nobody to go to
  EXPECT_EQ(second.get().status(), absl::FailedPreconditionError("no directory"));
  v1::Result result;
  result.set_token(one->token());
  result.mutable_checkpoint()->set_bytes(4);
  coordinator_.Result(result);
  EXPECT_EQ(first.get()->checkpoint().bytes(), 4);
}

// ---------------------------------------------------------------- leaving

TEST_F(MemberTest, DrainAsksTheCoordinatorAndStopsWithoutRegisteringAgain) {
  Start();
  Serve();
  std::future<absl::Status> drained =
      std::async(std::launch::async, [this] { return member().Drain("SIGTERM"); });
  const auto proposal = coordinator_.NextProposal();
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->drain().reason(), "SIGTERM");
  v1::Result result;
  result.set_token(proposal->token());
  coordinator_.Result(result);
  coordinator_.Disband(absl::UnavailableError("draining: rank 0 was asked to stop"));
  EXPECT_TRUE(drained.get().ok());
  EXPECT_TRUE(member().Wait().ok());
  EXPECT_FALSE(coordinator_.connected());
}

TEST_F(MemberTest, DrainTellsOfAFailedCheckpoint) {
  Start();
  Serve();
  std::future<absl::Status> drained =
      std::async(std::launch::async, [this] { return member().Drain("SIGTERM"); });
  const auto proposal = coordinator_.NextProposal();
  ASSERT_TRUE(proposal);
  v1::Result result;
  result.set_token(proposal->token());
  *result.mutable_status() = StatusToProto(absl::ResourceExhaustedError("disk full"));
  coordinator_.Result(result);
  EXPECT_EQ(drained.get(), absl::ResourceExhaustedError("disk full"));
}

TEST_F(MemberTest, DrainSucceedsIfAnotherRankHasDrainedTheGroup) {
  Start();
  Serve();
  std::future<absl::Status> drained =
      std::async(std::launch::async, [this] { return member().Drain("SIGTERM"); });
  ASSERT_TRUE(coordinator_.NextProposal());
  coordinator_.Disband(
      WithErrorInfo(absl::UnavailableError("draining: rank 1 was asked to stop"), {.reason = "draining"}));
  EXPECT_TRUE(drained.get().ok());
}

TEST_F(MemberTest, DrainFailsIfTheGroupBreaksBeforeItsCheckpoint) {
  Start();
  Serve();
  std::future<absl::Status> drained =
      std::async(std::launch::async, [this] { return member().Drain("SIGTERM"); });
  ASSERT_TRUE(coordinator_.NextProposal());
  coordinator_.Disband(absl::UnavailableError("rank 1 left"));
  EXPECT_EQ(Message(drained.get()), "rank 1 left");
}

TEST_F(MemberTest, DrainStopsAtOnceIfTheGroupIsNotServing) {
  Start();
  ASSERT_TRUE(coordinator_.Next(Kind::kRegister));
  EXPECT_TRUE(member().Drain("SIGTERM").ok());
  EXPECT_TRUE(member().Wait().ok());
}

TEST_F(MemberTest, DrainGivesUpAfterItsTimeout) {
  MemberOptions options = MemberRig::Options();
  options.drain_timeout = absl::Milliseconds(50);
  Start(options);
  Serve();
  EXPECT_EQ(member().Drain("SIGTERM").code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(MemberTest, StopFailsWhatWaits) {
  Start();
  Serve();
  OpenRun(1);
  auto reply = Submit();
  auto result = Propose(Checkpoint());
  member().Stop();
  EXPECT_EQ(reply.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(result.get().status()), "this shard is stopping");
  EXPECT_TRUE(member().Wait().ok());
  EXPECT_EQ(member().state(), "stopped");
}

}  // namespace
}  // namespace ccs
