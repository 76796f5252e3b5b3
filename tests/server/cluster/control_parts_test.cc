// The small parts of the control plane.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/cluster/messages.h"
#include "server/cluster/pending_proposals.h"
#include "server/cluster/status_proto.h"
#include "server/cluster/write_ledger.h"
#include "server/cluster/write_queue.h"
#include "server/engine/error_info.h"

namespace ccs {
namespace {

TEST(StatusProtoTest, KeepsCodeMessageAndDetails) {
  ErrorInfo info;
  info.reason = "missing_trainers";
  info.position = Position{0xfedcba9876543210u, 12};
  info.expected_step = 13;
  info.missing_trainers = {1, 4};
  const absl::Status back =
      StatusFromProto(StatusToProto(WithErrorInfo(absl::DeadlineExceededError("too late"), info)));
  EXPECT_EQ(back.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(back.message(), "too late");
  const auto got = GetErrorInfo(back);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->reason, info.reason);
  ASSERT_TRUE(got->position);
  EXPECT_EQ(got->position->lineage, info.position->lineage);
  EXPECT_EQ(got->position->step, 12);
  EXPECT_EQ(got->expected_step, 13);
  EXPECT_EQ(got->missing_trainers, info.missing_trainers);
}

TEST(StatusProtoTest, OkAndPlainErrorsHaveNoDetails) {
  EXPECT_TRUE(StatusFromProto(StatusToProto(absl::OkStatus())).ok());
  const absl::Status plain = StatusFromProto(StatusToProto(absl::AbortedError("x")));
  EXPECT_EQ(plain, absl::AbortedError("x"));
  EXPECT_FALSE(GetErrorInfo(plain));
}

TEST(StatusProtoTest, AnUnknownCodeIsAnError) {
  v1::StatusMessage message;
  message.set_code(99);
  EXPECT_EQ(StatusFromProto(message).code(), absl::StatusCode::kUnknown);
  message.set_code(-1);
  EXPECT_EQ(StatusFromProto(message).code(), absl::StatusCode::kUnknown);
}

TEST(MessagesTest, StepParamsKeepWhatIsAbsentAbsent) {
  StepParams params;
  params.learning_rate = 0.25f;
  EXPECT_EQ(StepParamsFromProto(StepParamsToProto(params)), params);
  params.scale = 0.0f;
  params.margin = kernels::Margin{1.1f, 0.2f, 0.3f};
  params.checkpoint = true;
  EXPECT_EQ(StepParamsFromProto(StepParamsToProto(params)), params);
}

TEST(MessagesTest, ASliceTellsHowLongItStillWaits) {
  Slice slice;
  slice.run_id = "r";
  slice.incarnation = 8;
  slice.trainer_rank = 2;
  slice.step = 5;
  slice.labels = {1, 2, 3};
  const absl::Time now = absl::Now();
  slice.deadline = now + absl::Seconds(2);
  const v1::SliceReady proto = SliceReadyToProto(slice, 3, 4, now);
  EXPECT_EQ(proto.run_id(), "r");
  EXPECT_EQ(proto.incarnation(), 8u);
  EXPECT_EQ(proto.trainer_rank(), 2);
  EXPECT_EQ(proto.step(), 5);
  EXPECT_EQ(proto.rows(), 3);
  EXPECT_EQ(proto.version(), 3);
  EXPECT_EQ(proto.attempt(), 4);
  EXPECT_EQ(proto.wait_ms(), 2000);
}

TEST(WriteLedgerTest, RemembersTheLast256Commits) {
  WriteLedger ledger;
  for (int i = 0; i < 257; ++i) ledger.Committed(std::to_string(i), i);
  EXPECT_FALSE(ledger.CommittedRows("0"));
  EXPECT_EQ(ledger.CommittedRows("1"), 1);
  EXPECT_EQ(ledger.CommittedRows("256"), 256);
}

TEST(WriteLedgerTest, ACommitTakesTheStagedRowsAndStagingItAgainCountsNothing) {
  WriteLedger ledger;
  ledger.Staged(0, "w", 3);
  ledger.Committed("w", 3);
  EXPECT_EQ(ledger.StagedRows("w"), 0);
  ledger.Staged(0, "w", 3);
  EXPECT_EQ(ledger.StagedRows("w"), 0);
}

TEST(PendingProposalsTest, GivesEachOutOnce) {
  PendingProposals proposals;
  std::vector<int> answered;
  const auto note = [&answered](int which) {
    return [&answered, which](const absl::StatusOr<v1::Result>&) { answered.push_back(which); };
  };
  const uint64_t first = proposals.Add(true, note(1));
  proposals.Add(false, note(2));
  proposals.Add(true, note(3));
  proposals.Take(first)(v1::Result());
  EXPECT_FALSE(proposals.Take(first));
  for (const auto& done : proposals.TakeOfEpoch()) done(absl::CancelledError(""));
  EXPECT_THAT(answered, testing::ElementsAre(1, 3));
  for (const auto& done : proposals.TakeAll()) done(absl::CancelledError(""));
  EXPECT_THAT(answered, testing::ElementsAre(1, 3, 2));
  EXPECT_TRUE(proposals.TakeAll().empty());
}

TEST(WriteQueueTest, WritesOneAtATimeInOrderAndFinishesAfterTheLast) {
  using Queue = WriteQueue<int>;
  Queue queue;
  EXPECT_EQ(queue.Push(1), Queue::Next::kWrite);
  EXPECT_EQ(queue.Push(2), Queue::Next::kNothing);
  EXPECT_EQ(*queue.front(), 1);
  EXPECT_EQ(queue.Close(), Queue::Next::kNothing);
  EXPECT_EQ(queue.Push(3), Queue::Next::kNothing) << "closed";
  EXPECT_EQ(queue.Written(true), Queue::Next::kWrite);
  EXPECT_EQ(*queue.front(), 2);
  EXPECT_EQ(queue.Written(true), Queue::Next::kFinish);
  EXPECT_EQ(queue.Close(), Queue::Next::kNothing) << "finishes once";
}

TEST(WriteQueueTest, AFailedWriteDropsTheRestAndFinishes) {
  using Queue = WriteQueue<int>;
  Queue queue;
  EXPECT_EQ(queue.Push(1), Queue::Next::kWrite);
  EXPECT_EQ(queue.Push(2), Queue::Next::kNothing);
  EXPECT_EQ(queue.Written(false), Queue::Next::kFinish);
  EXPECT_EQ(queue.Push(3), Queue::Next::kNothing);
}

}  // namespace
}  // namespace ccs
