#include "server/storage/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

TEST(FilesTest, ReadsWhatWasWritten) {
  const TemporaryDirectory directory;
  const std::string text = std::string(3 << 20, 'x') + std::string("\0end", 4);
  ASSERT_TRUE(WriteFile(directory.path() / "a", "longer than the second").ok());
  ASSERT_TRUE(WriteFile(directory.path() / "a", text).ok());
  EXPECT_EQ(*ReadFile(directory.path() / "a"), text);
  const auto digest = DigestFile(directory.path() / "a");
  ASSERT_TRUE(digest.ok()) << digest.status();
  EXPECT_EQ(*digest, (FileDigest{static_cast<int64_t>(text.size()), DigestOf(text)}));
  EXPECT_THAT(*ListDirectory(directory.path()), ::testing::ElementsAre(directory.path() / "a"));
  EXPECT_TRUE(Sync(directory.path()).ok());
}

// The value that xxhsum -H2 prints for the empty file: stored digests must not change with the library.
TEST(FilesTest, DigestsAreXxh3With128Bits) { EXPECT_EQ(DigestOf(""), "99aa06d3014798d86001c324468d497f"); }

TEST(FilesTest, AMissingFileIsNotFound) {
  const TemporaryDirectory directory;
  const auto missing = directory.path() / "missing";
  EXPECT_TRUE(absl::IsNotFound(ReadFile(missing).status()));
  EXPECT_TRUE(absl::IsNotFound(DigestFile(missing).status()));
  EXPECT_TRUE(absl::IsNotFound(ListDirectory(missing).status()));
  EXPECT_TRUE(absl::IsNotFound(Sync(missing)));
  EXPECT_TRUE(absl::IsNotFound(WriteFile(missing / "below", "")));
}

}  // namespace
}  // namespace ccs
