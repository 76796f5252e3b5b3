// Checkpoints read by another number of shards than wrote them.
#include "server/storage/whole_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

constexpr CheckpointId kId = {.lineage = 1, .step = 100, .nonce = 0xabc};
constexpr int64_t kClasses = 23;

std::unique_ptr<CheckpointStore> OpenRank(const fs::path& directory, int rank, int num_shards) {
  auto store = OpenCheckpointStore(directory, rank, num_shards);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

int64_t BytesOnDisk(const fs::path& directory) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const bool counts = entry.is_regular_file() && entry.path().filename() != kManifestName;
    if (counts) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

std::vector<std::string> FilesIn(const fs::path& directory) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) files.push_back(entry.path());
  return files;
}

struct Change {
  int from;
  int to;
  int64_t num_classes;
};

class OtherShardCountTest : public ::testing::TestWithParam<Change> {};

TEST_P(OtherShardCountTest, EveryShardGetsTheBitsOfItsClasses) {
  const auto [from, to, num_classes] = GetParam();
  TemporaryDirectory directory;
  SaveWhole(directory.path(), kId, from, num_classes);
  const int64_t on_disk = BytesOnDisk(directory.path());
  int64_t bytes = 0;
  for (int rank = 0; rank < to; ++rank) {
    const auto store = OpenRank(directory.path(), rank, to);
    const auto list = store->List();
    ASSERT_TRUE(list.ok()) << list.status();
    ASSERT_EQ(list->size(), 1u);
    EXPECT_EQ(list->front().header.id, kId);
    EXPECT_EQ(list->front().header.num_shards, from);
    bytes += list->front().bytes;

    const auto reader = store->Open(kId);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->header().num_shards, from);
    EXPECT_EQ((*reader)->header().num_local, num_classes);
    EXPECT_EQ((*reader)->header().spec, "the spec");
    const ClassRange own = ClassRangeOf(num_classes, to, rank);
    ExpectRows(**reader, own.start, own.count);
    EXPECT_THAT(*(*reader)->ReadRecords(), ElementsAre(Pair("ledger", "run 7")));
  }
  EXPECT_EQ(bytes, on_disk) << "the shares of all ranks together";
}

INSTANTIATE_TEST_SUITE_P(Shards, OtherShardCountTest,
                         ::testing::Values(Change{1, 8, kClasses}, Change{8, 3, kClasses},
                                           Change{3, 1, kClasses}, Change{5, 2, kClasses}, Change{1, 5, 3},
                                           Change{5, 3, 3}, Change{5, 8, 3}, Change{8, 1, 3}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.from, "To", info.param.to, "Of",
                                               info.param.num_classes);
                         });

class WholeCheckpointsTest : public ::testing::Test {
 protected:
  fs::path Part(int rank, int num_shards) const {
    return directory_.path() / PartFolderName(rank, num_shards) / kId.ToString();
  }

  TemporaryDirectory directory_;
};

TEST_F(WholeCheckpointsTest, ReadsAnyRangeWhoeverAsks) {
  SaveWhole(directory_.path(), kId, 3, kClasses);  // [0, 8), [8, 16), [16, 23)
  const auto reader = OpenRank(directory_.path(), 1, 8)->Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectRows(**reader, 0, kClasses);
  ExpectRows(**reader, 7, 2);
  ExpectRows(**reader, 15, 8);
  ExpectRows(**reader, 23, 0);
  for (const auto& [first, rows] : {std::pair{-1, 2}, {22, 2}, {24, 0}, {3, -1}}) {
    EXPECT_EQ((*reader)->ReadRows(first, rows, nullptr, nullptr).code(), absl::StatusCode::kInvalidArgument)
        << first;
  }
}

TEST_F(WholeCheckpointsTest, AllAreListedByAgeWithoutDoubles) {
  const CheckpointId older = {1, 50, 1};
  const CheckpointId newer = {2, 120, 2};
  SaveWhole(directory_.path(), newer, 3, kClasses);
  SaveWhole(directory_.path(), kId, 2, kClasses);
  SaveWhole(directory_.path(), kId, 5, kClasses);
  SaveWhole(directory_.path(), older, 2, kClasses);
  const auto list = OpenRank(directory_.path(), 1, 2)->List();
  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<std::pair<int64_t, int>> found;
  for (const StoredCheckpoint& stored : *list) {
    found.emplace_back(stored.header.id.step, stored.header.num_shards);
  }
  EXPECT_THAT(found, ElementsAre(Pair(50, 2), Pair(100, 2), Pair(120, 3)));
}

TEST_F(WholeCheckpointsTest, ADamagedPartOfItsOwnIsReadFromTheSameCheckpointOfOtherShards) {
  SaveWhole(directory_.path(), kId, 2, kClasses);
  SaveWhole(directory_.path(), kId, 5, kClasses);
  FlipBit(TableOf(Part(1, 2)), 1000);
  const auto store = OpenRank(directory_.path(), 1, 2);
  const auto list = store->List();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ(list->front().header.num_shards, 5);
  const auto reader = store->Open(kId);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectRows(**reader, 12, 11);
}

TEST_F(WholeCheckpointsTest, FoldersOfOthersAreOnlyRead) {
  SaveWhole(directory_.path(), kId, 3, kClasses);
  const fs::path leftover = directory_.path() / PartFolderName(1, 3) / "1-200-0000000000000abc.tmp-77-0";
  fs::create_directory(leftover);
  const auto owner = OpenRank(directory_.path(), 2, 3);  // has it locked
  std::vector<std::string> before;
  for (int rank = 0; rank < 3; ++rank) {
    for (std::string& file : FilesIn(directory_.path() / PartFolderName(rank, 3))) before.push_back(file);
  }

  const auto store = OpenRank(directory_.path(), 0, 1);
  EXPECT_THAT(ListIds(*store), ElementsAre(kId.ToString()));
  EXPECT_TRUE(store->Open(kId).ok());
  ASSERT_TRUE(store->Prune({9, 999, 9}, 1).ok());

  std::vector<std::string> after;
  for (int rank = 0; rank < 3; ++rank) {
    for (std::string& file : FilesIn(directory_.path() / PartFolderName(rank, 3))) after.push_back(file);
  }
  EXPECT_THAT(after, ::testing::UnorderedElementsAreArray(before));
}

TEST_F(WholeCheckpointsTest, PruneCountsItsOwnOnly) {
  for (const int64_t step : {100, 200, 300}) SaveWhole(directory_.path(), {1, step, 0}, 3, kClasses);
  for (const int64_t step : {50, 60, 400}) SaveWhole(directory_.path(), {2, step, 0}, 1, kClasses);
  const auto store = OpenRank(directory_.path(), 0, 1);
  ASSERT_TRUE(store->Prune({2, 400, 0}, 2).ok());
  const std::string nonce = "-0000000000000000";
  EXPECT_THAT(ListIds(*store), UnorderedElementsAre("1-100" + nonce, "1-200" + nonce, "1-300" + nonce,
                                                    "2-60" + nonce, "2-400" + nonce));
}

TEST_F(WholeCheckpointsTest, FoldersWithOtherNamesAreNotLookedAt) {
  for (const char* name : {"shard-0-of-0", "shard-3-of-3", "shard-00-of-1", "shard--1-of-2",
                           "shard-0-of-2.lock", "shard-0-of-2-old", "log"}) {
    fs::create_directories(directory_.path() / name / kId.ToString());
  }
  WholeCheckpoints checkpoints({.checkpoint_dir = directory_.path()});
  EXPECT_THAT(*checkpoints.Ids(), IsEmpty());
}

TEST_F(WholeCheckpointsTest, AFolderOfManyShardsThatAreNotThereCostsNothing) {
  fs::create_directories(Part(7, 2'000'000'000));
  WholeCheckpoints checkpoints({.checkpoint_dir = directory_.path()});
  EXPECT_THAT(*checkpoints.Ids(), ElementsAre(kId));
  EXPECT_EQ(checkpoints.Find(kId).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ccs
