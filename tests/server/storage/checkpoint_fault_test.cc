// Damage, crashes and full disks. Must be survived: any byte of any file changed, files cut short or missing,
// a process that dies before the rename or while it removes, a disk that fills up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_replace.h"
#include "server/storage/checkpoint_store.h"
#include "tests/server/storage/captured_log.h"
#include "tests/server/storage/checkpoint_test_util.h"
#include "tests/testing/small_disk.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr CheckpointId kId = {.lineage = 1, .step = 100, .nonce = 0xabc};

class CheckpointFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto saved = Save(*OpenStore(directory_.path()), kId);
    ASSERT_TRUE(saved.ok()) << saved.status();
  }

  fs::path checkpoint() const { return ShardDirectory(directory_.path()) / kId.ToString(); }

  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint())) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    return files;
  }

  // By a process that has not seen it before.
  void ExpectRefused(const std::string& file_name, absl::StatusCode code = absl::StatusCode::kDataLoss) {
    CapturedLog log;
    const auto store = OpenStore(directory_.path());
    EXPECT_THAT(ListIds(*store), IsEmpty()) << file_name;
    EXPECT_THAT(log.text(), HasSubstr(file_name));
    const absl::Status status = store->Open(kId).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file_name));
  }

  TemporaryDirectory directory_;
};

std::string ReadAll(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST_F(CheckpointFaultTest, AFlippedBitInAnyFileIsNoticed) {
  int flipped = 0;
  for (const fs::path& file : Files()) {
    const auto size = static_cast<int64_t>(fs::file_size(file));
    if (size == 0) continue;
    for (const int64_t offset : {int64_t{0}, size / 2, size - 1}) {
      FlipBit(file, offset);
      ExpectRefused(file.filename());
      FlipBit(file, offset);
      ++flipped;
    }
  }
  EXPECT_GT(flipped, 9);  // the manifest, the table, and RocksDB's own
  EXPECT_TRUE(OpenStore(directory_.path())->Open(kId).ok());
}

TEST_F(CheckpointFaultTest, AFileThatIsCutShortIsNoticed) {
  for (const fs::path& file : Files()) {
    const auto size = fs::file_size(file);
    if (size == 0) continue;
    const std::string text = ReadAll(file);
    fs::resize_file(file, size - 1);
    ExpectRefused(file.filename());
    std::ofstream(file, std::ios::binary) << text;
  }
}

TEST_F(CheckpointFaultTest, AMissingFileIsNoticed) {
  for (const fs::path& file : Files()) {
    fs::rename(file, directory_.path() / "away");
    ExpectRefused(file.filename());
    fs::rename(directory_.path() / "away", file);
  }
}

TEST_F(CheckpointFaultTest, DamageAfterTheFirstListIsNoticedByOpen) {
  const auto store = OpenStore(directory_.path());
  EXPECT_THAT(ListIds(*store), ElementsAre(kId.ToString()));
  FlipBit(TableOf(checkpoint()), 1000);
  EXPECT_EQ(store->Open(kId).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(ListIds(*store), IsEmpty());
}

TEST_F(CheckpointFaultTest, AnUnknownFormatVersionIsRefusedByItsNumber) {
  const fs::path manifest = checkpoint() / "MANIFEST.json";
  const std::string newer =
      absl::StrReplaceAll(ReadAll(manifest), {{"\"format_version\": 2", "\"format_version\": 3"}});
  std::ofstream(manifest) << newer;
  ExpectRefused("format version 3", absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointFaultTest, ACheckpointUnderAnotherNameIsRefused) {
  const CheckpointId other = {.lineage = 1, .step = 101, .nonce = 0xabc};
  fs::rename(checkpoint(), ShardDirectory(directory_.path()) / other.ToString());
  EXPECT_EQ(OpenStore(directory_.path())->Open(other).status().code(), absl::StatusCode::kDataLoss);
}

// A crash while writing leaves no manifest, or one under the temporary name; one while removing likewise.
TEST_F(CheckpointFaultTest, LeftoversOfAFormerProcessAreClearedAtOpen) {
  const fs::path shard = ShardDirectory(directory_.path());
  for (const char* name : {"1-200-0000000000000abc.tmp-77-0", "1-90-0000000000000abc.tmp-removed"}) {
    fs::copy(checkpoint(), shard / name, fs::copy_options::recursive);
  }
  fs::create_directories(shard / "not-a-checkpoint");
  const auto store = OpenStore(directory_.path());
  EXPECT_THAT(ListIds(*store), ElementsAre(kId.ToString()));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(shard)) left.push_back(entry.path().filename());
  EXPECT_THAT(left, ::testing::UnorderedElementsAre(kId.ToString(), "not-a-checkpoint"));
}

TEST_F(CheckpointFaultTest, PruneLeavesDamagedCheckpointsAlone) {
  const auto store = OpenStore(directory_.path());
  FlipBit(checkpoint() / "MANIFEST.json", 10);
  ASSERT_TRUE(Save(*store, {1, 200, 0}).ok());
  ASSERT_TRUE(store->Prune({1, 200, 0}, 1).ok());
  EXPECT_TRUE(fs::exists(checkpoint()));
}

TEST(CheckpointStoreOpenTest, NamesTheDirectoryThatItCannotCreate) {
  const absl::Status status = OpenCheckpointStore("/proc/no-such", 0, 1).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("/proc/no-such"));
}

TEST(FullDiskTest, AFullDiskIsResourceExhaustedAndLeavesNothingBehind) {
  const TemporaryDirectory directory;
  const testing::SmallDisk disk(directory.path(), "1m");  // smaller than the checkpoint
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  const auto store = OpenStore(directory.path());
  const absl::Status status = Save(*store, kId).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(ListIds(*store), IsEmpty());
  EXPECT_TRUE(fs::is_empty(ShardDirectory(directory.path())));
}

}  // namespace
}  // namespace ccs
