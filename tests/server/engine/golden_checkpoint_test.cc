// Checkpoints of format version 2, as the version that introduced it wrote them: every later one must load
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/ledger.h"
#include "server/storage/checkpoint_store.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int kShards = 2;
constexpr int64_t kClasses = 13;  // 7 on shard 0, 6 on shard 1
constexpr int kDim = 85;          // six rows a block: the blocks of 0 to 5, 6 to 11 (of both shards) and 12
const CheckpointId kWhole{3, 40, 5};
const CheckpointId kOnTop{3, 60, 6};  // builds on it: classes 0 to 5 are others

float Weight(const CheckpointId& id, int64_t class_id, int column) {
  const float changed = id == kOnTop && class_id < 6 ? 100 : 0;
  return changed + static_cast<float>(class_id) + static_cast<float>(column) / 128;
}

Ledger LedgerOf(const CheckpointId& id, int rank) {
  Ledger ledger;
  ledger.index = id.step + 4;
  ledger.run = {"run", {7, 8}};
  ledger.AddWrite({"write", 3});
  if (rank == 0) {
    SliceReply reply;
    reply.step = id.step;
    reply.loss = 1.5;
    reply.feature_grad = {0.25f, -0.5f};
    reply.statistics = {4, 3, 2, 1};
    ledger.answers.push_back({"run", 0, 9, std::make_shared<const SliceReply>(reply)});
  }
  return ledger;
}

CheckpointHeader HeaderOf(const CheckpointId& id, int rank) {
  return {.id = id,
          .index = id.step + 4,
          .rank = rank,
          .num_shards = kShards,
          .class_start = rank == 0 ? 0 : 7,
          .num_local = rank == 0 ? 7 : 6,
          .dim = kDim,
          .spec = "num_classes: 13 dim: 85",
          .created = absl::FromUnixSeconds(1'800'000'000)};
}

// How the stored ones were made.
void Write(const fs::path& directory) {
  for (int rank = 0; rank < kShards; ++rank) {
    const auto store = OpenCheckpointStore(directory, rank, kShards).value();
    for (const CheckpointId& id : {kWhole, kOnTop}) {
      const CheckpointHeader header = HeaderOf(id, rank);
      const bool on_top = id == kOnTop;
      auto writer = store->Create(header, on_top ? std::optional(kWhole) : std::nullopt);
      ASSERT_TRUE(writer.ok()) << writer.status();
      const int64_t rows = !on_top ? header.num_local : rank == 0 ? 6 : 0;
      std::vector<float> weight;
      for (int64_t row = 0; row < rows; ++row) {
        for (int d = 0; d < kDim; ++d) weight.push_back(Weight(id, header.class_start + row, d));
      }
      std::vector<float> momentum(weight.size());
      std::transform(weight.begin(), weight.end(), momentum.begin(), [](float w) { return -w; });
      ASSERT_TRUE((*writer)->AddRows(header.class_start, rows, weight.data(), momentum.data()).ok());
      ASSERT_TRUE((*writer)->AddRecord(Ledger::kRecordName, LedgerOf(id, rank).ToRecord()).ok());
      const auto size = (*writer)->Commit();
      ASSERT_TRUE(size.ok()) << size.status();
    }
  }
}

void ExpectRows(CheckpointReader& reader, const CheckpointId& id, int64_t first, int64_t count) {
  std::vector<float> weight(count * kDim);
  std::vector<float> momentum(count * kDim);
  const absl::Status read = reader.ReadRows(first, count, weight.data(), momentum.data());
  ASSERT_TRUE(read.ok()) << read;
  for (int64_t i = 0; i < count * kDim; ++i) {
    const float want = Weight(id, first + i / kDim, static_cast<int>(i % kDim));
    ASSERT_EQ(weight[i], want) << i;
    ASSERT_EQ(momentum[i], -want) << i;
  }
}

void ExpectLedger(CheckpointReader& reader, const CheckpointId& id, int rank) {
  const auto records = reader.ReadRecords();
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_THAT(*records, SizeIs(1));
  const auto ledger = Ledger::FromRecord((*records)[0].second);
  ASSERT_TRUE(ledger.ok()) << ledger.status();
  EXPECT_EQ(ledger->index, id.step + 4);
  EXPECT_EQ(ledger->run, (RunState{"run", {7, 8}}));
  EXPECT_THAT(ledger->writes, ElementsAre(CommittedWrite{"write", 3}));
  ASSERT_THAT(ledger->answers, SizeIs(rank == 0 ? 1 : 0));
  if (rank != 0) return;
  const AnsweredSlice& answer = ledger->answers[0];
  EXPECT_EQ(answer.run_id, "run");
  EXPECT_EQ(answer.digest, 9u);
  EXPECT_EQ(answer.reply->step, id.step);
  EXPECT_EQ(answer.reply->loss, 1.5);
  EXPECT_THAT(answer.reply->feature_grad, ElementsAre(0.25f, -0.5f));
  EXPECT_EQ(answer.reply->statistics.sampled_classes, 2);
}

void ExpectAll(const fs::path& directory) {
  for (int rank = 0; rank < kShards; ++rank) {
    const auto store = OpenCheckpointStore(directory, rank, kShards).value();
    const auto list = store->List();
    ASSERT_TRUE(list.ok()) << list.status();
    ASSERT_THAT(*list, SizeIs(2));
    for (const StoredCheckpoint& stored : *list) {
      const CheckpointHeader& header = stored.header;
      EXPECT_EQ(header.index, header.id.step + 4);
      EXPECT_EQ(header.spec, "num_classes: 13 dim: 85");
      EXPECT_EQ(header.created, absl::FromUnixSeconds(1'800'000'000));
      const auto reader = store->Open(header.id);
      ASSERT_TRUE(reader.ok()) << reader.status();
      ExpectRows(**reader, header.id, header.class_start, header.num_local);
      ExpectLedger(**reader, header.id, rank);
    }
  }
  const auto other = OpenCheckpointStore(directory, 1, 3).value();
  for (const CheckpointId& id : {kWhole, kOnTop}) {
    const auto reader = other->Open(id);
    ASSERT_TRUE(reader.ok()) << reader.status();
    ExpectRows(**reader, id, 0, kClasses);
  }
}

class GoldenCheckpointTest : public ::testing::Test {
 protected:
  GoldenCheckpointTest() {
    std::string pattern = ::testing::TempDir() + "ccs_golden_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~GoldenCheckpointTest() override { fs::remove_all(directory_); }

  fs::path directory_;
};

TEST_F(GoldenCheckpointTest, OfFormatVersionTwoLoadsWithAllItHolds) {
  // A store takes a lock and clears leftovers: not in the sources.
  fs::copy(fs::path(CCS_GOLDEN_DIR) / "checkpoint_format_2", directory_, fs::copy_options::recursive);
  ExpectAll(directory_);
}

TEST_F(GoldenCheckpointTest, WhatThisVersionWritesHoldsTheSame) {
  Write(directory_);
  ExpectAll(directory_);
}

}  // namespace
}  // namespace ccs
