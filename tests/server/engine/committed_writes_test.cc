#include "server/engine/committed_writes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ccs {
namespace {

TEST(CommittedWritesTest, TheRecordBringsEverythingBack) {
  CommittedWrites ledger;
  ledger.Add({"first \"quoted\"", 3});
  ledger.Add({"second", int64_t{1} << 40});
  const auto restored = CommittedWrites::FromRecord(ledger.ToRecord());
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_EQ(restored->writes().size(), 2u);
  EXPECT_EQ(restored->writes()[0].write_id, "first \"quoted\"");
  EXPECT_EQ(restored->writes()[1].rows, int64_t{1} << 40);
  EXPECT_TRUE(restored->Contains("second"));
  EXPECT_FALSE(restored->Contains("third"));
}

TEST(CommittedWritesTest, OnlyTheLast256AreKept) {
  CommittedWrites ledger;
  for (int i = 0; i < 300; ++i) ledger.Add({absl::StrCat("w", i), i});
  EXPECT_EQ(ledger.writes().size(), 256u);
  EXPECT_FALSE(ledger.Contains("w43"));
  EXPECT_TRUE(ledger.Contains("w44"));
  EXPECT_EQ(ledger.writes().back().write_id, "w299");
}

TEST(CommittedWritesTest, ADamagedRecordIsDataLoss) {
  for (const char* record : {"", "{", "[]", R"({"version": 1})", R"({"version": 2, "committed_writes": []})",
                             R"({"version": 1, "committed_writes": [{"write_id": 5, "rows": 1}]})",
                             R"({"version": 1, "committed_writes": [{"write_id": "x"}]})"}) {
    EXPECT_EQ(CommittedWrites::FromRecord(record).status().code(), absl::StatusCode::kDataLoss) << record;
  }
}

}  // namespace
}  // namespace ccs
