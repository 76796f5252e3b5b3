// Missing and damaged parts of a checkpoint by another number of shards: named, not offered, never made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/manifest.h"
#include "server/storage/part_folder.h"
#include "tests/server/storage/captured_log.h"
#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr CheckpointId kId = {.lineage = 1, .step = 100, .nonce = 0xabc};
constexpr int64_t kClasses = 23;
constexpr int kFrom = 3;  // [0, 8), [8, 16), [16, 23)

class WholeCheckpointsFaultTest : public ::testing::Test {
 protected:
  void SetUp() override { SaveWhole(directory_.path(), kId, kFrom, kClasses); }

  fs::path Folder(int rank) const { return directory_.path() / PartFolderName(rank, kFrom); }
  fs::path Part(int rank) const { return Folder(rank) / kId.ToString(); }

  std::unique_ptr<CheckpointStore> Open(int rank, int num_shards) {
    auto store = OpenCheckpointStore(directory_.path(), rank, num_shards);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  // By a process that has not seen it before.
  void ExpectRefused(int rank, int num_shards, const std::string& name,
                     absl::StatusCode code = absl::StatusCode::kDataLoss) {
    CapturedLog log;
    const auto store = Open(rank, num_shards);
    EXPECT_THAT(ListIds(*store), IsEmpty()) << name;
    EXPECT_THAT(log.text(), AllOf(HasSubstr(name), HasSubstr(kId.ToString())));
    const absl::Status status = store->Open(kId).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }

  TemporaryDirectory directory_;
};

TEST_F(WholeCheckpointsFaultTest, AMissingFolderIsNamedWhoeverNeedsIt) {
  for (int missing = 0; missing < kFrom; ++missing) {
    fs::rename(Folder(missing), directory_.path() / "away");
    for (int rank = 0; rank < 2; ++rank) ExpectRefused(rank, 2, Folder(missing).string() + " is missing");
    fs::rename(directory_.path() / "away", Folder(missing));
  }
  EXPECT_THAT(ListIds(*Open(0, 2)), ElementsAre(kId.ToString()));
}

TEST_F(WholeCheckpointsFaultTest, AllMissingPartsAreNamed) {
  fs::rename(Part(0), directory_.path() / "away");
  fs::remove_all(Folder(2));
  ExpectRefused(0, 1, absl::StrCat(Part(0).string(), " and ", Folder(2).string(), " are missing"));
}

TEST_F(WholeCheckpointsFaultTest, ADamagedManifestOrACutFileIsNoticedByAllShards) {
  for (int part = 0; part < kFrom; ++part) {
    const fs::path manifest = Part(part) / kManifestName;
    FlipBit(manifest, 40);
    for (int rank = 0; rank < 4; ++rank) ExpectRefused(rank, 4, manifest.string());
    FlipBit(manifest, 40);
    const fs::path table = TableOf(Part(part));
    fs::copy_file(table, directory_.path() / "whole");
    fs::resize_file(table, fs::file_size(table) - 1);
    for (int rank = 0; rank < 4; ++rank) ExpectRefused(rank, 4, table.string());
    fs::rename(directory_.path() / "whole", table);
  }
}

TEST_F(WholeCheckpointsFaultTest, AFlippedBitIsNoticedByTheShardsWhoseClassesAreInThePart) {
  const fs::path file = Part(1) / kRowsDirectory / "IDENTITY";  // of [8, 16); RocksDB would not notice
  FlipBit(file, 0);
  ExpectRefused(1, 4, file.string());  // [6, 12)
  ExpectRefused(2, 4, file.string());  // [12, 18)
  for (const int rank : {0, 3}) EXPECT_THAT(ListIds(*Open(rank, 4)), ElementsAre(kId.ToString()));

  const auto reader = Open(0, 4)->Open(kId);  // [0, 6)
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectRows(**reader, 0, 8);
  std::vector<float> weight(kSixRowsDim);
  std::vector<float> momentum(kSixRowsDim);
  const absl::Status status = (*reader)->ReadRows(15, 1, weight.data(), momentum.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "rows outside its own range are verified too";
}

TEST_F(WholeCheckpointsFaultTest, DamageAfterTheFirstListIsNoticedByOpen) {
  const auto store = Open(0, 1);
  EXPECT_THAT(ListIds(*store), ElementsAre(kId.ToString()));
  FlipBit(TableOf(Part(2)), 1000);
  EXPECT_EQ(store->Open(kId).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(ListIds(*store), IsEmpty());
}

TEST_F(WholeCheckpointsFaultTest, PartsThatDoNotBelongTogetherAreRefused) {
  fs::remove_all(Part(1));
  TemporaryDirectory other;
  SaveWhole(other.path(), kId, kFrom, kClasses, "another spec");
  fs::copy(other.path() / PartFolderName(1, kFrom) / kId.ToString(), Part(1), fs::copy_options::recursive);
  ExpectRefused(0, 1, absl::StrCat(Part(1).string(), "/MANIFEST.json is of another model"));

  fs::remove_all(Part(1));
  TemporaryDirectory longer;
  SaveWhole(longer.path(), kId, kFrom, kClasses + 3);
  fs::copy(longer.path() / PartFolderName(1, kFrom) / kId.ToString(), Part(1), fs::copy_options::recursive);
  ExpectRefused(0, 1, absl::StrCat(Part(1).string(), "/MANIFEST.json begins at class 9 instead of 8"));
}

TEST_F(WholeCheckpointsFaultTest, WhatIsNotWholeIsLoggedOnceAndOfferedOnceItIs) {
  fs::rename(Part(1), directory_.path() / "away");
  const auto store = Open(0, 1);
  {
    CapturedLog log;
    EXPECT_THAT(ListIds(*store), IsEmpty());
    EXPECT_THAT(log.text(), HasSubstr(Part(1).string()));
  }
  {
    CapturedLog log;
    EXPECT_THAT(ListIds(*store), IsEmpty());
    EXPECT_EQ(log.text(), "");
  }
  fs::rename(directory_.path() / "away", Part(1));  // by the shard that was still writing it
  EXPECT_THAT(ListIds(*store), ElementsAre(kId.ToString()));
}

TEST_F(WholeCheckpointsFaultTest, ANewShardDoesNotBeginAnewWhereItCouldResumeIfAPartWereNotMissing) {
  EXPECT_TRUE(Open(0, 1)->CheckResumable().ok());
  fs::rename(Part(1), directory_.path() / "away");
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Status status = Open(0, 1)->CheckResumable();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(Part(1).string() + " is missing"));
  }
  fs::create_directory(directory_.path() / PartFolderName(0, 1) / "log");
  EXPECT_TRUE(Open(0, 1)->CheckResumable().ok()) << "it has a history of its own";
  SaveWhole(directory_.path(), {1, 50, 1}, 1, kClasses);
  EXPECT_TRUE(Open(0, 1)->CheckResumable().ok());
}

}  // namespace
}  // namespace ccs
