#include "client/ctl/class_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ccs::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseClassIds, ReadsIdsAndRangesInOrder) {
  const auto ids = ParseClassIds("7,1,10-13,2-2");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(7, 1, 10, 11, 12, 13, 2));
}

TEST(ParseClassIds, NamesThePieceThatIsWrong) {
  for (const std::string piece : {"", "x", "-3", "5-", "9-8", "1-2-3", "1.5", "99999999999999999999"}) {
    const auto ids = ParseClassIds("4," + piece);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument) << piece;
    EXPECT_THAT(ids.status().message(), HasSubstr("'" + piece + "'"));
  }
}

TEST(ParseClassIds, RefusesMoreThanFitBeforeMakingThem) {
  EXPECT_THAT(ParseClassIds("0-9223372036854775806").status().message(), HasSubstr("more than 10000000"));
  EXPECT_FALSE(ParseClassIds("5,0-9999999").ok());
}

}  // namespace
}  // namespace ccs::client
