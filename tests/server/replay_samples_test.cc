#include "server/replay_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A file as NumPy 1.0 writes it.
std::string NpyFile(const std::string& type, const std::string& shape, const std::vector<int64_t>& values) {
  std::string header =
      absl::StrCat("{'descr': '", type, "', 'fortran_order': False, 'shape': ", shape, ", }");
  header.resize(117, ' ');
  header += '\n';
  std::string file =
      absl::StrCat("\x93NUMPY\x01", std::string(1, '\0'), std::string(1, 118), std::string(1, '\0'));
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
  return file;
}

class ReplaySamplesTest : public ::testing::Test {
 protected:
  ReplaySamplesTest()
      : folder_(fs::path(::testing::TempDir()) / absl::StrCat("ccs-replay-samples-", getpid())) {
    fs::create_directories(folder_ / "shard2");
  }
  ~ReplaySamplesTest() override { fs::remove_all(folder_); }

  fs::path Write(const std::string& content) {
    const fs::path path = folder_ / "shard2" / "sampled_7.npy";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  const fs::path folder_;
};

TEST_F(ReplaySamplesTest, AStepGetsTheRowsOfItsFile) {
  Write(NpyFile("<i8", "(3,)", {4, 9, int64_t{1} << 40}));
  const SampledRowsOverride rows = ReplaySamples(folder_, 2);
  EXPECT_THAT(rows(7), ElementsAre(4, 9, int64_t{1} << 40));
}

TEST_F(ReplaySamplesTest, AStepWithoutAFileGetsNoRows) {
  EXPECT_THAT(ReplaySamples(folder_, 2)(8), IsEmpty());
}

TEST_F(ReplaySamplesTest, AnEmptyFileOfRowsIsEmpty) {
  EXPECT_THAT(*ReadIndexArray(Write(NpyFile("<i8", "(0,)", {}))), IsEmpty());
}

TEST_F(ReplaySamplesTest, OtherTypesShapesAndTruncatedFilesAreRefused) {
  const std::string good = NpyFile("<i8", "(2,)", {1, 2});
  ASSERT_TRUE(ReadIndexArray(Write(good)).ok());
  for (const std::string& bad :
       {std::string(), good.substr(0, 9), good.substr(0, good.size() - 1), good.substr(0, good.size() - 8),
        "X" + good, NpyFile("<i4", "(2,)", {1, 2}), NpyFile("<i8", "(1, 2)", {1, 2})}) {
    EXPECT_EQ(ReadIndexArray(Write(bad)).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(ReadIndexArray(folder_ / "none.npy").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ccs
