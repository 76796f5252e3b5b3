#include <ccs/v1/training.pb.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/engine/error_info.h"
#include "server/rpc/status.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;

TEST(RpcStatusTest, OkIsOk) { EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok()); }

TEST(RpcStatusTest, CodeAndMessageGoOverAsTheyAre) {
  const grpc::Status status = ToGrpcStatus(absl::ResourceExhaustedError("too much"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "too much");
  EXPECT_EQ(status.error_details(), "");
}

TEST(RpcStatusTest, TypedDetailsTravelInARichStatus) {
  const ErrorInfo info = {.reason = "unexpected_step",
                          .position = Position{.lineage = 7, .step = 41},
                          .expected_step = 42,
                          .missing_trainers = {1, 3}};
  const grpc::Status status = ToGrpcStatus(WithErrorInfo(absl::FailedPreconditionError("step 9"), info));
  v1::RichStatus rich;
  ASSERT_TRUE(rich.ParseFromString(status.error_details()));
  EXPECT_EQ(rich.code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(rich.message(), "step 9");
  ASSERT_EQ(rich.details_size(), 1);
  v1::ErrorDetail detail;
  ASSERT_TRUE(rich.details(0).UnpackTo(&detail));
  EXPECT_EQ(detail.reason(), "unexpected_step");
  EXPECT_EQ(detail.position().lineage(), 7u);
  EXPECT_EQ(detail.position().step(), 41);
  EXPECT_EQ(detail.expected_step(), 42);
  EXPECT_THAT(detail.missing_trainers(), ElementsAre(1, 3));
}

TEST(RpcStatusTest, ErrorsAreCountedUnderTheirReasonElseTheirCode) {
  EXPECT_EQ(RejectReason(WithErrorInfo(absl::AbortedError("x"), {.reason = "abandoned_lineage"})),
            "abandoned_lineage");
  EXPECT_EQ(RejectReason(absl::DeadlineExceededError("x")), "deadline_exceeded");
  EXPECT_EQ(CodeName(absl::StatusCode::kInvalidArgument), "INVALID_ARGUMENT");
}

}  // namespace
}  // namespace ccs
