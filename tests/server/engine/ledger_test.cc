#include "server/engine/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"

namespace ccs {
namespace {

TEST(LedgerTest, TheRecordBringsEveryBitBack) {
  Ledger ledger;
  ledger.index = 41;
  ledger.run = {"a run \xff", {1, std::numeric_limits<uint64_t>::max()}};
  ledger.AddWrite({"first \"quoted\"", 3});
  ledger.AddWrite({"second", int64_t{1} << 40});
  const SliceReply reply{.step = 7,
                         .loss = std::numeric_limits<double>::denorm_min(),
                         .feature_grad = {0.1f, -0.0f, std::numeric_limits<float>::denorm_min()},
                         .statistics = {4, 3, 2, 1}};
  ledger.answers.push_back({"a run", 2, 0xFEDCBA9876543210u, std::make_shared<const SliceReply>(reply)});

  const auto restored = Ledger::FromRecord(ledger.ToRecord());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->index, 41);
  EXPECT_EQ(restored->run, ledger.run);
  EXPECT_EQ(restored->writes, ledger.writes);
  EXPECT_TRUE(restored->Contains("second"));
  EXPECT_FALSE(restored->Contains("third"));
  ASSERT_EQ(restored->answers.size(), 1u);
  EXPECT_EQ(restored->answers[0].digest, ledger.answers[0].digest);
  EXPECT_EQ(restored->answers[0].trainer_rank, 2);
  EXPECT_EQ(restored->answers[0].reply->loss, reply.loss);
  EXPECT_EQ(restored->answers[0].reply->statistics.sampled_classes, 2);
  EXPECT_EQ(restored->ToRecord(), ledger.ToRecord());
}

TEST(LedgerTest, OnlyTheLast256WritesAreKept) {
  Ledger ledger;
  for (int i = 0; i < 300; ++i) ledger.AddWrite({absl::StrCat("w", i), i});
  EXPECT_EQ(ledger.writes.size(), 256u);
  EXPECT_FALSE(ledger.Contains("w43"));
  EXPECT_TRUE(ledger.Contains("w44"));
}

TEST(LedgerTest, ADamagedRecordIsDataLoss) {
  const std::string whole = Ledger{}.ToRecord();
  ASSERT_TRUE(Ledger::FromRecord(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(Ledger::FromRecord(whole.substr(0, length)).status().code(), absl::StatusCode::kDataLoss)
        << length;
  }
  EXPECT_EQ(Ledger::FromRecord(R"({"version": 1})").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ccs
