// A byte of a checkpoint is flipped, one after another: it is never loaded, and the older one is used,
// loudly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/storage/checkpoint_store.h"
#include "tests/server/storage/captured_log.h"
#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kStride = CCS_FLIP_STRIDE;

// One row is enough to have every kind of file.
void SaveOneRow(const fs::path& directory, int64_t step) {
  CheckpointHeader header = SmallHeader({1, step, 0xabc});
  header.num_local = 1;
  header.dim = 4;
  const auto writer = OpenStore(directory)->Create(header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(AddRows(**writer, header.class_start, header.num_local, header.dim).ok());
  ASSERT_TRUE((*writer)->AddRecord("ledger", "run 7").ok());
  ASSERT_TRUE((*writer)->Commit().ok());
}

TEST(CheckpointFlipTest, WhicheverByteIsFlippedTheOlderOneIsUsedAndTheDamageIsSaid) {
  const TemporaryDirectory directory;
  SaveOneRow(directory.path(), 100);
  SaveOneRow(directory.path(), 200);
  const CheckpointId older = {1, 100, 0xabc};
  const CheckpointId newer = {1, 200, 0xabc};
  int64_t flipped = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(ShardDirectory(directory.path()) / newer.ToString())) {
    if (!entry.is_regular_file()) continue;
    const auto size = static_cast<int64_t>(entry.file_size());
    for (int64_t offset = flipped % kStride; offset < size; offset += kStride, ++flipped) {
      FlipBit(entry.path(), offset);
      {
        CapturedLog log;
        const auto store = OpenStore(directory.path());
        ASSERT_THAT(ListIds(*store), ElementsAre(older.ToString())) << entry.path() << ", byte " << offset;
        ASSERT_THAT(log.text(), HasSubstr(newer.ToString()));
        ASSERT_FALSE(store->Open(newer).ok());
      }
      FlipBit(entry.path(), offset);
    }
  }
  EXPECT_GT(flipped, 5000 / kStride) << "the manifest, the table, and RocksDB's own";
  const auto store = OpenStore(directory.path());
  EXPECT_THAT(ListIds(*store), ElementsAre(older.ToString(), newer.ToString()));
  EXPECT_TRUE(store->Open(older).ok());
  EXPECT_TRUE(store->Open(newer).ok());
}

}  // namespace
}  // namespace ccs
