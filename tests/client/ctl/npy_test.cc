#include "client/ctl/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace ccs::client {
namespace {

using ::testing::ElementsAre;

std::string Npy(const std::string& header, const std::vector<float>& values, char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += version;
  bytes += '\0';
  bytes += static_cast<char>(header.size());
  bytes.append(version == 1 ? 1 : 3, '\0');
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return bytes;
}

absl::StatusOr<Matrix> Read(const std::string& bytes) {
  const std::string path = testing::TempDir() + "/npy_test_" + std::to_string(getpid()) + ".npy";
  std::ofstream(path, std::ios::binary) << bytes;
  auto result = ReadNpy(path);
  std::filesystem::remove(path);
  return result;
}

TEST(ReadNpy, ReadsMatricesOfEveryVersionAndSingleRows) {
  for (const char version : {1, 2, 3}) {
    const auto matrix = Read(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n",
                                 {1, 2, 3, 4, 5, 6}, version));
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    EXPECT_EQ(matrix->rows, 2);
    EXPECT_EQ(matrix->cols, 3);
    EXPECT_THAT(matrix->values, ElementsAre(1, 2, 3, 4, 5, 6));
  }
  const auto row = Read(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", {1, 2, 3}));
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->rows, 1);
  EXPECT_EQ(row->cols, 3);
}

TEST(ReadNpy, RefusesWhatIsNotAFloatMatrix) {
  const std::vector<std::string> headers = {"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 2), }",
                                            "{'descr': '>f4', 'fortran_order': False, 'shape': (1, 2), }",
                                            "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }",
                                            "{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
                                            "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2), }",
                                            "nonsense"};
  for (const std::string& header : headers) {
    EXPECT_EQ(Read(Npy(header, {1, 2})).status().code(), absl::StatusCode::kInvalidArgument) << header;
  }
}

TEST(ReadNpy, RefusesDamage) {
  const std::string whole = Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }", {1, 2});
  ASSERT_TRUE(Read(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(Read(whole.substr(0, size)).status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  EXPECT_FALSE(Read(whole + "more").ok());
  EXPECT_FALSE(
      Read(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387905, 4), }", {1, 2, 3, 4}))
          .ok());
  EXPECT_EQ(ReadNpy("/nowhere/x.npy").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ccs::client
