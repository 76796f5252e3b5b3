#include "server/engine/step_assembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/error_info.h"
#include "server/engine/slice_digest.h"
#include "tests/server/engine/recording_control_plane.h"

namespace ccs {
namespace {

using ::ccs::testing::RecordingControlPlane;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ready = RecordingControlPlane::Ready;
using Reply = absl::StatusOr<std::shared_ptr<const SliceReply>>;

constexpr uint64_t kLineage = 4;

// What one Submit came to; unset while it waits.
class Outcome {
 public:
  StepAssembler::Done done() {
    return [reply = reply_](Reply value) {
      EXPECT_FALSE(reply->has_value()) << "answered twice";
      *reply = std::move(value);
    };
  }
  bool waits() const { return !reply_->has_value(); }
  absl::Status status() const { return waits() ? absl::UnknownError("it waits") : (*reply_)->status(); }
  absl::StatusCode code() const { return status().code(); }
  std::string reason() const {
    const auto info = GetErrorInfo(status());
    return info ? info->reason : "";
  }
  double loss() const { return (**reply_).value()->loss; }

 private:
  std::shared_ptr<std::optional<Reply>> reply_ = std::make_shared<std::optional<Reply>>();
};

Slice MakeSlice(int trainer, int64_t step, float value = 1) {
  Slice slice;
  slice.run_id = "run";
  slice.incarnation = 100 + trainer;
  slice.lineage = kLineage;
  slice.trainer_rank = trainer;
  slice.step = step;
  slice.features = {value, value};
  slice.labels = {0};
  slice.digest = SliceDigest(slice);
  return slice;
}

StepOperation Go(int64_t step, std::vector<SliceChoice> slices) {
  StepOperation operation;
  operation.step = step;
  operation.slices = std::move(slices);
  return operation;
}

SliceReply ReplyOf(int64_t step, double loss) {
  SliceReply reply;
  reply.step = step;
  reply.loss = loss;
  return reply;
}

// Shard 0 of 2 in a run of 4 trainers: 0 and 2 are at home. Step 10 is done.
class StepAssemblerTest : public ::testing::Test {
 protected:
  StepAssemblerTest() {
    assembler_.StartEpoch({kLineage, 10});
    assembler_.SetRun({"run", {100, 101, 102, 103}});
  }
  Outcome Submit(Slice slice) {
    Outcome outcome;
    assembler_.Submit(std::move(slice), outcome.done());
    return outcome;
  }

  RecordingControlPlane control_;
  StepAssembler assembler_{0, 2, &control_};
};

TEST_F(StepAssemblerTest, ASliceIsAnnouncedAndAnsweredWhenItsStepIsComplete) {
  const Outcome a = Submit(MakeSlice(0, 11));
  const Outcome b = Submit(MakeSlice(2, 11));
  EXPECT_THAT(control_.ready(), ElementsAre(Ready{0, 11, 1, 1}, Ready{2, 11, 1, 1}));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}, {2, 1}})).ok());
  EXPECT_EQ(assembler_.position().step, 11);
  ASSERT_EQ(assembler_.ChosenSlices(11).size(), 2u);
  EXPECT_EQ(assembler_.ChosenSlices(11)[1]->trainer_rank, 2);
  EXPECT_TRUE(a.waits());
  assembler_.Complete(11, {ReplyOf(11, 0.5), ReplyOf(11, 0.25)});
  EXPECT_EQ(a.loss(), 0.5);
  EXPECT_EQ(b.loss(), 0.25);
}

TEST_F(StepAssemblerTest, ARepeatedSliceWaitsWithTheFirstAndIsNotAnnouncedAgain) {
  const Outcome first = Submit(MakeSlice(0, 11));
  const Outcome second = Submit(MakeSlice(0, 11));
  EXPECT_EQ(control_.ready().size(), 1u);
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  const Outcome third = Submit(MakeSlice(0, 11));
  EXPECT_TRUE(third.waits());
  assembler_.Complete(11, {ReplyOf(11, 0.5)});
  EXPECT_EQ(first.loss(), 0.5);
  EXPECT_EQ(second.loss(), 0.5);
  EXPECT_EQ(third.loss(), 0.5);
}

TEST_F(StepAssemblerTest, ARepeatedSliceOfTheLastStepGetsTheStoredReply) {
  Submit(MakeSlice(0, 11));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  assembler_.Complete(11, {ReplyOf(11, 0.5)});
  EXPECT_EQ(Submit(MakeSlice(0, 11)).loss(), 0.5);
}

TEST_F(StepAssemblerTest, AnotherPayloadIsRefusedFromGoOn) {
  Submit(MakeSlice(0, 11));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  const Outcome running = Submit(MakeSlice(0, 11, 2));
  EXPECT_EQ(running.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(running.reason(), "payload_differs");
  assembler_.Complete(11, {ReplyOf(11, 0.5)});
  EXPECT_EQ(Submit(MakeSlice(0, 11, 2)).reason(), "payload_differs");
}

TEST_F(StepAssemblerTest, BeforeGoACorrectedSliceIsANewVersion) {
  const Outcome wrong = Submit(MakeSlice(0, 11, 1));
  const Outcome right = Submit(MakeSlice(0, 11, 2));
  EXPECT_THAT(control_.ready(), ElementsAre(Ready{0, 11, 1, 1}, Ready{0, 11, 2, 1}));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 2}})).ok());
  EXPECT_EQ(wrong.reason(), "payload_differs");
  EXPECT_TRUE(right.waits());
  EXPECT_EQ(assembler_.ChosenSlices(11)[0]->features[0], 2);
}

TEST_F(StepAssemblerTest, TheCoordinatorMayStillChooseTheEarlierVersion) {
  const Outcome first = Submit(MakeSlice(0, 11, 1));
  const Outcome late = Submit(MakeSlice(0, 11, 2));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  EXPECT_EQ(late.reason(), "payload_differs");
  assembler_.Complete(11, {ReplyOf(11, 0.5)});
  EXPECT_EQ(first.loss(), 0.5);
}

TEST_F(StepAssemblerTest, ALaterCallWithTheSamePayloadIsAnnouncedAndAnEarlierOneCountsNoMore) {
  Slice slice = MakeSlice(0, 11, 1);
  slice.call = 4;
  const Outcome first = Submit(slice);
  const Outcome repeated = Submit(slice);
  EXPECT_EQ(control_.ready().size(), 1u);
  slice.call = 5;
  const Outcome again = Submit(slice);
  EXPECT_THAT(control_.ready(), ElementsAre(Ready{0, 11, 1, 1}, Ready{0, 11, 1, 1}));
  Slice late = MakeSlice(0, 11, 2);
  late.call = 3;
  EXPECT_EQ(Submit(late).reason(), "payload_differs");
  EXPECT_EQ(control_.ready().size(), 2u);
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  EXPECT_EQ(assembler_.ChosenSlices(11)[0]->call, 5);
  assembler_.Complete(11, {ReplyOf(11, 0.5)});
  for (const Outcome* outcome : {&first, &repeated, &again}) EXPECT_EQ(outcome->loss(), 0.5);
}

TEST_F(StepAssemblerTest, TooManyPayloadsForOneStepAreRefused) {
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(Submit(MakeSlice(0, 11, static_cast<float>(i))).waits());
  EXPECT_EQ(Submit(MakeSlice(0, 11, 8)).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(StepAssemblerTest, AFailedAttemptDropsItsSlicesAndTheNextOneCounts) {
  const Outcome failed = Submit(MakeSlice(0, 11));
  assembler_.FailStep(11, 1, absl::DeadlineExceededError("trainer 2 is missing"));
  EXPECT_EQ(failed.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(assembler_.position().step, 10);
  const Outcome again = Submit(MakeSlice(0, 11));
  EXPECT_THAT(control_.ready(), ElementsAre(Ready{0, 11, 1, 1}, Ready{0, 11, 1, 2}));
  assembler_.FailStep(11, 1, absl::DeadlineExceededError("an echo of the first attempt"));
  assembler_.FailStep(10, 2, absl::DeadlineExceededError("another step"));
  EXPECT_TRUE(again.waits());
}

TEST_F(StepAssemblerTest, OtherStepsAreRefusedWithTheExpectedOne) {
  for (const int64_t step : {-1, 0, 9, 10, 12, 13}) {
    const Outcome outcome = Submit(MakeSlice(0, step));
    EXPECT_EQ(outcome.code(), absl::StatusCode::kFailedPrecondition) << step;
    const auto info = GetErrorInfo(outcome.status());
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->reason, "unexpected_step");
    EXPECT_EQ(info->expected_step, 11);
    EXPECT_EQ(info->position->step, 10);
  }
}

TEST_F(StepAssemblerTest, AnotherLineageIsAbortedWithThePosition) {
  Slice slice = MakeSlice(0, 11);
  slice.lineage = kLineage - 1;
  const Outcome outcome = Submit(slice);
  EXPECT_EQ(outcome.code(), absl::StatusCode::kAborted);
  const auto info = GetErrorInfo(outcome.status());
  ASSERT_TRUE(info && info->position);
  EXPECT_EQ(info->position->lineage, kLineage);
  EXPECT_EQ(info->position->step, 10);
}

TEST_F(StepAssemblerTest, StrangersAreRefused) {
  Slice other_run = MakeSlice(0, 11);
  other_run.run_id = "other";
  EXPECT_EQ(Submit(other_run).reason(), "run_not_open");
  EXPECT_EQ(Submit(MakeSlice(4, 11)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Submit(MakeSlice(-1, 11)).reason(), "unknown_trainer");
  EXPECT_EQ(Submit(MakeSlice(1, 11)).reason(), "not_at_home");
  Slice stale = MakeSlice(0, 11);
  stale.incarnation = 99;
  EXPECT_EQ(Submit(stale).reason(), "stale_incarnation");
  EXPECT_THAT(control_.ready(), IsEmpty());
}

TEST_F(StepAssemblerTest, ATrainerThatHasNotOpenedTheRunIsRefused) {
  assembler_.SetRun({"run", {100, 101, 0, 103}});
  Slice slice = MakeSlice(2, 11);
  slice.incarnation = 0;
  EXPECT_EQ(Submit(slice).reason(), "stale_incarnation");
}

TEST_F(StepAssemblerTest, WithoutARunNothingIsAccepted) {
  assembler_.SetRun({});
  Slice slice = MakeSlice(0, 11);
  EXPECT_EQ(Submit(slice).reason(), "run_not_open");
  slice.run_id = "";
  EXPECT_EQ(Submit(slice).reason(), "run_not_open");
}

TEST_F(StepAssemblerTest, ARestartedTrainerFencesOffItsFormerSlices) {
  const Outcome former = Submit(MakeSlice(0, 11));
  const Outcome other = Submit(MakeSlice(2, 11));
  assembler_.SetRun({"run", {200, 101, 102, 103}});
  EXPECT_EQ(former.reason(), "stale_incarnation");
  EXPECT_TRUE(other.waits());
  Slice restarted = MakeSlice(0, 11);
  restarted.incarnation = 200;
  EXPECT_TRUE(Submit(restarted).waits());
  EXPECT_EQ(control_.ready().back(), (Ready{0, 11, 1, 1}));
}

TEST_F(StepAssemblerTest, ClosingTheRunFailsWhatWaitsButNotARunningStep) {
  const Outcome running = Submit(MakeSlice(0, 11));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  const Outcome next = Submit(MakeSlice(0, 12));
  assembler_.SetRun({});
  EXPECT_EQ(next.reason(), "run_not_open");
  assembler_.Complete(11, {ReplyOf(11, 0.5)});
  EXPECT_EQ(running.loss(), 0.5);
}

TEST_F(StepAssemblerTest, AnotherRunDoesNotGetTheStoredReplyOfTheLast) {
  Submit(MakeSlice(0, 11));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  assembler_.Complete(11, {ReplyOf(11, 0.5)});
  assembler_.SetRun({"next", {100, 101, 102, 103}});
  Slice slice = MakeSlice(0, 11);
  slice.run_id = "next";
  EXPECT_EQ(Submit(slice).reason(), "unexpected_step");
}

TEST_F(StepAssemblerTest, TheNextStepIsAcceptedWhileOneRuns) {
  const Outcome eleven = Submit(MakeSlice(0, 11));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  const Outcome twelve = Submit(MakeSlice(0, 12));
  EXPECT_TRUE(twelve.waits());
  ASSERT_TRUE(assembler_.ChooseSlices(Go(12, {{0, 1}})).ok()) << "the engine has not come to 11 yet";
  EXPECT_TRUE(eleven.waits());
  assembler_.Complete(11, {ReplyOf(11, 0.5)});
  EXPECT_EQ(eleven.loss(), 0.5);
  assembler_.Complete(12, {ReplyOf(12, 0.25)});
  EXPECT_EQ(twelve.loss(), 0.25);
  EXPECT_EQ(Submit(MakeSlice(0, 11)).reason(), "unexpected_step") << "only the last step's replies are kept";
}

TEST_F(StepAssemblerTest, AGoThatDoesNotFitChangesNothing) {
  const Outcome outcome = Submit(MakeSlice(0, 11));
  EXPECT_EQ(assembler_.ChooseSlices(Go(12, {{0, 1}})).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(assembler_.ChooseSlices(Go(11, {{0, 2}})).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(assembler_.ChooseSlices(Go(11, {{0, 1}, {2, 1}})).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(outcome.waits());
  EXPECT_EQ(assembler_.position().step, 10);
}

TEST_F(StepAssemblerTest, TheEndOfTheEpochFailsEverythingThatWaits) {
  const Outcome running = Submit(MakeSlice(0, 11));
  ASSERT_TRUE(assembler_.ChooseSlices(Go(11, {{0, 1}})).ok());
  const Outcome next = Submit(MakeSlice(0, 12));
  assembler_.EndEpoch(absl::UnavailableError("shard 1 is lost"));
  EXPECT_EQ(running.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(next.code(), absl::StatusCode::kUnavailable);
  const Outcome later = Submit(MakeSlice(0, 12));
  EXPECT_THAT(std::string(later.status().message()), HasSubstr("shard 1 is lost"));
  assembler_.Complete(11, {ReplyOf(11, 0.5)});  // the engine was late
  assembler_.StartEpoch({kLineage + 1, 8});
  const Outcome old = Submit(MakeSlice(0, 12));
  EXPECT_EQ(old.code(), absl::StatusCode::kAborted) << "no run is open, but the lineage says more";
}

TEST(StepAssembler, BeforeTheFirstEpochItIsUnavailable) {
  RecordingControlPlane control;
  StepAssembler assembler(0, 1, &control);
  Outcome outcome;
  assembler.Submit(MakeSlice(0, 1), outcome.done());
  EXPECT_EQ(outcome.code(), absl::StatusCode::kUnavailable);
}

TEST(StepAssembler, ManyThreadsGetTheOneReplyOfTheirStep) {
  RecordingControlPlane control;
  StepAssembler assembler(0, 1, &control);
  assembler.StartEpoch({kLineage, 0});
  assembler.SetRun({"run", {100, 101, 102, 103}});
  std::vector<Outcome> outcomes(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { assembler.Submit(MakeSlice(i / 2, 1), outcomes[i].done()); });
  }
  control.WaitReady(3);
  ASSERT_TRUE(assembler.ChooseSlices(Go(1, {{0, 1}, {1, 1}, {2, 1}, {3, 1}})).ok());
  assembler.Complete(1, {ReplyOf(1, 0), ReplyOf(1, 1), ReplyOf(1, 2), ReplyOf(1, 3)});
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(outcomes[i].loss(), i / 2);
}

}  // namespace
}  // namespace ccs
