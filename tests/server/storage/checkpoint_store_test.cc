#include "server/storage/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr CheckpointId kId = {.lineage = 1, .step = 100, .nonce = 0xabc};

class CheckpointStoreTest : public ::testing::Test {
 protected:
  // As a new process would find it.
  CheckpointStore& Reopen() {
    store_.reset();
    store_ = OpenStore(directory_.path());
    return *store_;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<CheckpointStore> store_ = OpenStore(directory_.path());
};

TEST(CheckpointIdTest, PrintsTheNonceInSixteenHexadecimalDigits) {
  EXPECT_EQ(kId.ToString(), "1-100-0000000000000abc");
  EXPECT_EQ((CheckpointId{~0ull, 0, ~0ull}).ToString(), "18446744073709551615-0-ffffffffffffffff");
}

TEST_F(CheckpointStoreTest, ReadsBackEveryBitOfAnySubrange) {
  ASSERT_TRUE(Save(*store_, kId).ok());
  const auto reader = store_->Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectRows(**reader, 700, 1501);  // all: blocks start at 512, 1024, 1536, 2048
  ExpectRows(**reader, 700, 324);   // to the end of the first block
  ExpectRows(**reader, 1023, 2);    // across a border
  ExpectRows(**reader, 2200, 1);    // the last row
  ExpectRows(**reader, 900, 0);
  ExpectRows(**reader, 2201, 0);
}

TEST_F(CheckpointStoreTest, TheHeaderComesBackAsItWas) {
  ASSERT_TRUE(Save(*store_, kId).ok());
  const auto reader = Reopen().Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const CheckpointHeader expected = SmallHeader(kId);
  const CheckpointHeader& header = (*reader)->header();
  EXPECT_EQ(header.id, expected.id);
  EXPECT_EQ(header.rank, expected.rank);
  EXPECT_EQ(header.num_shards, expected.num_shards);
  EXPECT_EQ(header.class_start, expected.class_start);
  EXPECT_EQ(header.num_local, expected.num_local);
  EXPECT_EQ(header.dim, expected.dim);
  EXPECT_EQ(header.spec, expected.spec);
  EXPECT_EQ(header.created, expected.created);
}

TEST_F(CheckpointStoreTest, RowsMayComeInPiecesOfAnySize) {
  const CheckpointHeader header = SmallHeader(kId);
  auto writer = store_->Create(header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  int64_t next = header.class_start;
  const int64_t end = header.class_start + header.num_local;
  for (int64_t size = 0; next < end; size = size * 3 + 1) {
    const int64_t rows = std::min(size, end - next);
    ASSERT_TRUE(AddRows(**writer, next, rows, header.dim).ok());
    next += rows;
  }
  ASSERT_TRUE((*writer)->Commit().ok());
  const auto reader = store_->Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectRows(**reader, header.class_start, header.num_local);
}

TEST_F(CheckpointStoreTest, ABlockHoldsARowThatIsLargerThanABlock) {
  CheckpointHeader header = SmallHeader(kId);
  header.dim = 200'000;
  header.num_local = 3;
  auto writer = store_->Create(header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(AddRows(**writer, 700, 3, header.dim).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  const auto reader = store_->Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectRows(**reader, 701, 2);
}

TEST_F(CheckpointStoreTest, AShardWithoutClassesHasCheckpointsToo) {
  CheckpointHeader header = SmallHeader(kId);
  header.num_local = 0;
  auto writer = store_->Create(header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->AddRows(700, 0, nullptr, nullptr).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  const auto reader = store_->Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->ReadRows(700, 0, nullptr, nullptr).ok());
  EXPECT_THAT(*(*reader)->ReadRecords(), IsEmpty());
}

TEST_F(CheckpointStoreTest, RecordsComeBackByName) {
  const CheckpointHeader header = SmallHeader(kId);
  auto writer = store_->Create(header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::string binary("\0\xff\n", 3);
  ASSERT_TRUE((*writer)->AddRecord("b", binary).ok());
  ASSERT_TRUE(AddRows(**writer, header.class_start, header.num_local, header.dim).ok());
  ASSERT_TRUE((*writer)->AddRecord("a", "").ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  const auto reader = store_->Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT(*(*reader)->ReadRecords(), ElementsAre(Pair("a", ""), Pair("b", binary)));
}

TEST_F(CheckpointStoreTest, RefusesRowsThatBeginWithinABlockOrComeAgain) {
  const CheckpointHeader header = SmallHeader(kId);
  auto writer = store_->Create(header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto refused = [&](int64_t first, int64_t rows) {
    return absl::IsInvalidArgument(AddRows(**writer, first, rows, header.dim));
  };
  EXPECT_TRUE(refused(701, 1));     // a gap
  EXPECT_TRUE(refused(699, 1));     // before the shard
  EXPECT_TRUE(refused(700, 1502));  // beyond its end
  EXPECT_TRUE(AddRows(**writer, 700, 10, header.dim).ok());
  EXPECT_TRUE(refused(709, 1));  // again
  EXPECT_TRUE(refused(711, 1));  // a gap
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Commit().status()));
  EXPECT_TRUE(AddRows(**writer, 710, 1491, header.dim).ok());
  EXPECT_TRUE((*writer)->Commit().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Commit().status()));
}

TEST_F(CheckpointStoreTest, RefusesReadsOutsideTheShard) {
  ASSERT_TRUE(Save(*store_, kId).ok());
  const auto reader = store_->Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> rows(2 * 170);
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->ReadRows(699, 1, rows.data(), rows.data())));
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->ReadRows(2200, 2, rows.data(), rows.data())));
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->ReadRows(700, -1, rows.data(), rows.data())));
}

TEST_F(CheckpointStoreTest, RefusesHeadersOfAnotherShardAndSpecsThatAreNotText) {
  for (int field = 0; field < 5; ++field) {
    CheckpointHeader header = SmallHeader(kId);
    if (field == 0) header.rank = 0;
    if (field == 1) header.num_shards = 4;
    if (field == 2) header.dim = 0;
    if (field == 3) header.num_local = -1;
    if (field == 4) header.spec = "\xff";
    EXPECT_TRUE(absl::IsInvalidArgument(store_->Create(header).status())) << field;
  }
  EXPECT_TRUE(std::filesystem::is_empty(ShardDirectory(directory_.path())));
}

TEST_F(CheckpointStoreTest, WhatIsNotCommittedIsInvisibleAndRemoved) {
  {
    auto writer = store_->Create(SmallHeader(kId));
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(AddRows(**writer, 700, 1501, 170).ok());
    EXPECT_THAT(ListIds(*store_), IsEmpty());
    EXPECT_TRUE(absl::IsNotFound(store_->Open(kId).status()));
    EXPECT_FALSE(std::filesystem::is_empty(ShardDirectory(directory_.path())));
  }
  EXPECT_TRUE(std::filesystem::is_empty(ShardDirectory(directory_.path())));
}

TEST_F(CheckpointStoreTest, ASecondStoreOfTheShardIsRefusedAndRemovesNothing) {
  auto writer = store_->Create(SmallHeader(kId));
  ASSERT_TRUE(writer.ok()) << writer.status();
  const absl::Status second = OpenCheckpointStore(directory_.path(), kRank, kNumShards).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << second;
  const CheckpointHeader header = SmallHeader(kId);
  ASSERT_TRUE(AddRows(**writer, header.class_start, header.num_local, header.dim).ok());
  EXPECT_TRUE((*writer)->Commit().ok());
  EXPECT_THAT(ListIds(Reopen()), ElementsAre(kId.ToString()));
}

TEST_F(CheckpointStoreTest, RefusesAnIdThatExists) {
  ASSERT_TRUE(Save(*store_, kId).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Save(*store_, kId).status()));
  EXPECT_THAT(ListIds(*store_), ElementsAre(kId.ToString()));
}

TEST_F(CheckpointStoreTest, OfTwoWritersOfOneIdTheFirstToCommitWins) {
  CheckpointHeader header = SmallHeader(kId);
  header.num_local = 0;
  auto first = store_->Create(header);
  auto second = store_->Create(header);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE((*second)->Commit().ok());
  EXPECT_TRUE(absl::IsAlreadyExists((*first)->Commit().status()));
  EXPECT_TRUE(store_->Open(kId).ok());
}

TEST_F(CheckpointStoreTest, ListsOldestFirstByLineageStepAndNonce) {
  for (const CheckpointId id : {CheckpointId{2, 5, 1}, {1, 100, 2}, {1, 100, 1}, {1, 20, 9}, {10, 1, 1}}) {
    ASSERT_TRUE(Save(*store_, id).ok());
  }
  EXPECT_THAT(ListIds(*store_),
              ElementsAre("1-20-0000000000000009", "1-100-0000000000000001", "1-100-0000000000000002",
                          "2-5-0000000000000001", "10-1-0000000000000001"));
}

TEST_F(CheckpointStoreTest, ListTellsTheBytesOnDisk) {
  const auto committed = Save(*store_, kId);
  ASSERT_TRUE(committed.ok()) << committed.status();
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
    if (entry.is_regular_file() && entry.path().filename() != "MANIFEST.json") bytes += entry.file_size();
  }
  EXPECT_EQ(committed->bytes, bytes);
  EXPECT_EQ((*store_->List())[0].bytes, bytes);
  EXPECT_GT(bytes, 1501 * 170 * 8);
}

TEST_F(CheckpointStoreTest, PruneKeepsTheNewestAndWhatIsNewerThanNamed) {
  for (int64_t step = 1; step <= 6; ++step) ASSERT_TRUE(Save(*store_, {1, step, 0}).ok());
  ASSERT_TRUE(store_->Prune({1, 5, 0}, 2).ok());
  EXPECT_THAT(ListIds(*store_),
              ElementsAre("1-4-0000000000000000", "1-5-0000000000000000", "1-6-0000000000000000"));
  ASSERT_TRUE(store_->Prune({1, 6, 0}, 0).ok());
  EXPECT_THAT(ListIds(*store_), ElementsAre("1-6-0000000000000000"));
  EXPECT_THAT(ListIds(Reopen()), ElementsAre("1-6-0000000000000000"));
}

TEST_F(CheckpointStoreTest, WhatIsKeptStaysUntilItIsReleased) {
  const auto save = [&](int64_t step, bool kept) {
    CheckpointHeader header = SmallHeader({1, step, 0});
    header.kept = kept;
    const auto writer = store_->Create(header);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(AddRows(**writer, header.class_start, header.num_local, header.dim).ok());
    ASSERT_TRUE((*writer)->Commit().ok());
  };
  for (int64_t step = 1; step <= 5; ++step) save(step, /*kept=*/step == 2);
  const auto left = store_->Prune({1, 5, 0}, 2);
  ASSERT_TRUE(left.ok()) << left.status();
  ASSERT_EQ(left->size(), 2u) << "one that is kept is none of the newest";
  EXPECT_EQ(left->front().header.id.step, 5);
  EXPECT_EQ(left->back().header.id.step, 4);
  Reopen();
  EXPECT_THAT(ListIds(*store_),
              ElementsAre("1-2-0000000000000000", "1-4-0000000000000000", "1-5-0000000000000000"));
  EXPECT_TRUE(store_->List()->front().header.kept);
  EXPECT_FALSE(store_->List()->back().header.kept);

  EXPECT_TRUE(absl::IsNotFound(store_->Release({1, 3, 0})));
  ASSERT_TRUE(store_->Release({1, 2, 0}).ok());
  ASSERT_TRUE(store_->Release({1, 2, 0}).ok()) << "twice is once";
  EXPECT_FALSE(store_->List()->front().header.kept);
  ASSERT_TRUE(store_->Prune({1, 5, 0}, 2).ok());
  EXPECT_THAT(ListIds(*store_), ElementsAre("1-4-0000000000000000", "1-5-0000000000000000"));
}

// What a checkpoint builds on says nothing of how long it stays itself.
TEST_F(CheckpointStoreTest, BuildingOnAKeptOneDoesNotKeep) {
  CheckpointHeader header = SmallHeader({1, 1, 0});
  header.kept = true;
  auto writer = store_->Create(header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(AddRows(**writer, header.class_start, header.num_local, header.dim).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  writer = store_->Create(SmallHeader({1, 2, 0}), header.id);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Commit().ok());
  EXPECT_TRUE(store_->List()->front().header.kept);
  EXPECT_FALSE(store_->List()->back().header.kept);
}

TEST_F(CheckpointStoreTest, AReaderOutlivesThePruningOfItsCheckpoint) {
  ASSERT_TRUE(Save(*store_, {1, 1, 0}).ok());
  ASSERT_TRUE(Save(*store_, {1, 2, 0}).ok());
  const auto reader = store_->Open({1, 1, 0});
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE(store_->Prune({1, 2, 0}, 1).ok());
  ExpectRows(**reader, 700, 1501);
}

TEST_F(CheckpointStoreTest, ReadingChangesNoFile) {
  ASSERT_TRUE(Save(*store_, kId).ok());
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto reader = Reopen().Open(kId);
    ASSERT_TRUE(reader.ok()) << reader.status();
    ExpectRows(**reader, 1000, 10);
  }
  EXPECT_THAT(ListIds(Reopen()), ElementsAre(kId.ToString()));
}

TEST_F(CheckpointStoreTest, ListsWhileAnotherThreadWritesAndPrunes) {
  std::atomic<bool> done{false};
  std::jthread writer([&] {
    for (int64_t step = 1; step <= 8; ++step) {
      EXPECT_TRUE(Save(*store_, {1, step, 0}).ok());
      EXPECT_TRUE(store_->Prune({1, step, 0}, 2).ok());
    }
    done = true;
  });
  int64_t newest = 0;
  while (!done) {
    const auto list = store_->List();
    ASSERT_TRUE(list.ok()) << list.status();
    EXPECT_LE(list->size(), 3u);
    if (list->empty()) continue;
    EXPECT_GE(list->back().header.id.step, newest);
    newest = list->back().header.id.step;
  }
}

}  // namespace
}  // namespace ccs
