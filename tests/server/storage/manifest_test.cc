#include "server/storage/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

Manifest Example() {
  return {.header = SmallHeader({~0ull, 5, ~0ull}),
          .rows_per_block = 512,
          .files = {{"rows/a", {10, "0a"}}, {"rows/b", {0, "0b"}}}};
}

TEST(ManifestTest, ComesBackAsItWas) {
  const auto text = WriteManifest(Example());
  ASSERT_TRUE(text.ok()) << text.status();
  const auto manifest = ReadManifest(*text);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->header.id, Example().header.id);
  EXPECT_EQ(manifest->header.created, Example().header.created);
  EXPECT_EQ(manifest->rows_per_block, 512);
  EXPECT_EQ(manifest->files, Example().files);
  EXPECT_EQ(manifest->bytes(), 10);
}

TEST(ManifestTest, AnyOtherTextIsDataLoss) {
  const std::string text = *WriteManifest(Example());
  for (const std::string& bad : {std::string(), std::string("{}"), std::string("[1]"), text + " ",
                                 text.substr(0, text.size() / 2), "{\"format_version\": 2}\n" + text}) {
    EXPECT_TRUE(absl::IsDataLoss(ReadManifest(bad).status())) << bad;
  }
}

TEST(ManifestTest, ANewerVersionIsNamed) {
  const absl::Status status = ReadManifest("{\"format_version\": 7}").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("version 7"));
}

// What version 2 looked like when it was introduced; later programs must still read it.
TEST(ManifestTest, ReadsAStoredVersionTwo) {
  const std::string stored = R"({
  "format_version": 2,
  "lineage": 3,
  "step": 40,
  "nonce": 5,
  "index": 47,
  "rank": 0,
  "num_shards": 2,
  "class_start": 0,
  "num_local": 10,
  "dim": 4,
  "rows_per_block": 32768,
  "created": "2024-01-02T03:04:05.5+00:00",
  "spec": "num_classes: 20",
  "files": {
    "rows/CURRENT": {
      "size": 16,
      "xxh3": "99aa06d3014798d86001c324468d497f"
    }
  },
  "manifest_xxh3": "705d6fce92bb6580d567a2585e9415b0"
}
)";
  const auto manifest = ReadManifest(stored);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->header.id, (CheckpointId{3, 40, 5}));
  EXPECT_EQ(manifest->header.index, 47);
  EXPECT_EQ(manifest->header.num_local, 10);
  EXPECT_EQ(manifest->files.at("rows/CURRENT").size, 16);
}

TEST(ManifestTest, ChecksSizesAlwaysAndDigestsIfDeep) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFile(directory.path() / "a", "hello").ok());
  Manifest manifest = Example();
  manifest.files = {{"a", {5, DigestOf("hello")}}};
  EXPECT_TRUE(CheckFiles(directory.path(), manifest, true).ok());
  manifest.files = {{"a", {5, DigestOf("other")}}};
  EXPECT_TRUE(CheckFiles(directory.path(), manifest, false).ok());
  EXPECT_TRUE(absl::IsDataLoss(CheckFiles(directory.path(), manifest, true)));
  manifest.files = {{"a", {6, DigestOf("hello")}}};
  EXPECT_TRUE(absl::IsDataLoss(CheckFiles(directory.path(), manifest, false)));
  manifest.files = {{"missing", {5, DigestOf("hello")}}};
  EXPECT_TRUE(absl::IsDataLoss(CheckFiles(directory.path(), manifest, false)));
}

}  // namespace
}  // namespace ccs
