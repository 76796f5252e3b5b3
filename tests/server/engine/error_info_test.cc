#include "server/engine/error_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ccs {
namespace {

TEST(ErrorInfoTest, EveryFieldSurvivesTheStatus) {
  const absl::Status status =
      WithErrorInfo(absl::DeadlineExceededError("late"), {.reason = "missing_trainers",
                                                          .position = Position{UINT64_MAX, 41},
                                                          .expected_step = 42,
                                                          .missing_trainers = {1, 3}});
  EXPECT_EQ(status.message(), "late");
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, "missing_trainers");
  EXPECT_EQ(info->position->lineage, UINT64_MAX);
  EXPECT_EQ(info->position->step, 41);
  EXPECT_EQ(info->expected_step, 42);
  EXPECT_THAT(info->missing_trainers, ::testing::ElementsAre(1, 3));
}

TEST(ErrorInfoTest, AnAbsentPositionStaysAbsent) {
  const auto info = GetErrorInfo(WithErrorInfo(absl::InvalidArgumentError("no"), {.reason = "x"}));
  ASSERT_TRUE(info.has_value());
  EXPECT_FALSE(info->position.has_value());
}

TEST(ErrorInfoTest, AStatusWithoutInfoHasNone) {
  EXPECT_FALSE(GetErrorInfo(absl::InternalError("bare")).has_value());
  EXPECT_FALSE(GetErrorInfo(absl::OkStatus()).has_value());
}

TEST(ErrorInfoTest, BytesThatAreNotTextDoNoHarm) {
  EXPECT_TRUE(GetErrorInfo(WithErrorInfo(absl::InternalError("x"), {.reason = "\xff\xfe"})).has_value());
}

}  // namespace
}  // namespace ccs
