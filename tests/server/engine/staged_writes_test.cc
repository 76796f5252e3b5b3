#include "server/engine/staged_writes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(StagedWritesTest, RowsOfOneIdAddUpAndTheLastOneOfAClassCounts) {
  StagedWrites writes(2, 1000);
  EXPECT_EQ(*writes.Add("a", {5, 3}, {1, 2, 3, 4}), 2);
  EXPECT_EQ(*writes.Add("a", {3, 9}, {5, 6, 7, 8}), 3);
  EXPECT_THAT(writes.Take("a"), ElementsAre(Pair(3, ElementsAre(5, 6)), Pair(5, ElementsAre(1, 2)),
                                            Pair(9, ElementsAre(7, 8))));
  EXPECT_THAT(writes.Take("a"), IsEmpty());
}

TEST(StagedWritesTest, IdsAreApart) {
  StagedWrites writes(1, 1000);
  ASSERT_TRUE(writes.Add("a", {1}, {10}).ok());
  ASSERT_TRUE(writes.Add("b", {1}, {20}).ok());
  EXPECT_THAT(writes.Take("b"), ElementsAre(Pair(1, ElementsAre(20))));
  EXPECT_THAT(writes.Take("a"), ElementsAre(Pair(1, ElementsAre(10))));
}

TEST(StagedWritesTest, TheLimitIsRefusedWithBothNumbersAndChangesNothing) {
  StagedWrites writes(2, 3 * 8);
  ASSERT_TRUE(writes.Add("a", {1, 2}, {1, 1, 2, 2}).ok());
  const auto refused = writes.Add("b", {1, 2}, {3, 3, 4, 4});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("32 bytes"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("24"));
  EXPECT_THAT(writes.Take("b"), IsEmpty());
  EXPECT_EQ(*writes.Add("a", {2, 3}, {5, 5, 6, 6}), 3) << "only the fresh row counts";
}

TEST(StagedWritesTest, TakingAndClearingMakeRoom) {
  StagedWrites writes(1, 4);
  ASSERT_TRUE(writes.Add("a", {1}, {1}).ok());
  EXPECT_FALSE(writes.Add("b", {1}, {1}).ok());
  writes.Take("a");
  ASSERT_TRUE(writes.Add("b", {1}, {1}).ok());
  writes.Clear();
  EXPECT_TRUE(writes.Add("c", {7}, {1}).ok());
  EXPECT_THAT(writes.Take("b"), IsEmpty());
}

TEST(StagedWritesTest, ARowNamedTwiceInOneRequestCountsOnce) {
  StagedWrites writes(1, 4);
  EXPECT_EQ(*writes.Add("a", {1, 1}, {1, 2}), 1);
  EXPECT_THAT(writes.Take("a"), ElementsAre(Pair(1, ElementsAre(2))));
}

TEST(StagedWritesTest, ValuesThatDoNotMatchTheIdsAreRefused) {
  StagedWrites writes(2, 1000);
  EXPECT_EQ(writes.Add("a", {1, 2}, {1, 2, 3}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ccs
