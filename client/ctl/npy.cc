#include "client/ctl/npy.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ccs::client {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicSize = 6;
// Magic, version, and the header's length in two bytes (version 1) or four (2 and 3).
constexpr size_t kPreambleSize = 12;

struct Header {
  std::string text;
  size_t data_start = 0;
};

absl::StatusOr<Header> FindHeader(const std::string& bytes) {
  if (bytes.size() < kPreambleSize || bytes.compare(0, kMagicSize, kMagic) != 0) {
    return absl::InvalidArgumentError("is not an .npy file");
  }
  const auto byte = [&bytes](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(bytes[i])); };
  const bool version_1 = byte(kMagicSize) == 1;
  const size_t start = version_1 ? 10 : 12;
  size_t length = byte(8) | byte(9) << 8;
  if (!version_1) length |= byte(10) << 16 | byte(11) << 24;
  if (bytes.size() - start < length) return absl::InvalidArgumentError("is cut short");
  return Header{bytes.substr(start, length), start + length};
}

absl::StatusOr<Matrix> Parse(const std::string& bytes) {
  const auto header = FindHeader(bytes);
  if (!header.ok()) return header.status();
  static const std::regex kHeader(
      R"(\{\s*'descr':\s*'<f4',\s*'fortran_order':\s*False,\s*'shape':\s*\((\d+),(?:\s*(\d+))?,?\s*\),?\s*\}\s*)");
  std::smatch match;
  Matrix matrix;
  if (!std::regex_match(header->text, match, kHeader) || !absl::SimpleAtoi(match[1].str(), &matrix.rows) ||
      (match[2].matched && !absl::SimpleAtoi(match[2].str(), &matrix.cols))) {
    return absl::InvalidArgumentError(
        absl::StrCat("does not hold a float32 matrix in C order but ", header->text));
  }
  if (!match[2].matched) matrix.cols = std::exchange(matrix.rows, 1);
  const size_t size = bytes.size() - header->data_start;
  const size_t values = size / sizeof(float);
  // Divides rather than multiplies: the shape may be any number.
  if (size % sizeof(float) != 0 ||
      (matrix.cols == 0
           ? values != 0
           : values % matrix.cols != 0 || values / matrix.cols != static_cast<size_t>(matrix.rows))) {
    return absl::InvalidArgumentError(
        absl::StrCat("should hold [", matrix.rows, ", ", matrix.cols, "] values but has ", size, " bytes"));
  }
  matrix.values.resize(values);
  if (size > 0) std::memcpy(matrix.values.data(), bytes.data() + header->data_start, size);
  return matrix;
}

}  // namespace

absl::StatusOr<Matrix> ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto matrix = Parse(bytes);
  if (!matrix.ok())
    return absl::Status(matrix.status().code(), absl::StrCat(path, " ", matrix.status().message()));
  return matrix;
}

}  // namespace ccs::client
