#include "tests/testing/npy.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

namespace ccs::testing {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::string_view kDigits = "0123456789";

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(path, "cannot be opened");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// What stands after a key of the header, which is a Python dictionary, up to one of `end`.
std::string_view HeaderField(const std::string& path, std::string_view header, std::string_view key,
                             std::string_view end) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) Fail(path, "header without " + std::string(key));
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, rest.find_first_of(end));
}

// The numbers of "(3, 64)", "(3,)" or "()", without the brackets.
std::vector<int64_t> ParseShape(std::string_view text) {
  std::vector<int64_t> shape;
  for (size_t at = text.find_first_of(kDigits); at != std::string_view::npos;
       at = text.find_first_of(kDigits, at)) {
    shape.push_back(std::stoll(std::string(text.substr(at))));
    at = text.find_first_not_of(kDigits, at);
  }
  return shape;
}

template <typename T>
std::vector<T> Values(const std::string& path, std::string_view bytes, int64_t count) {
  if (bytes.size() != count * sizeof(T)) Fail(path, "size does not fit the shape");
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

NpyArray ReadNpy(const std::string& path) {
  const std::string file = ReadAll(path);
  if (file.size() < 12 || file.compare(0, kMagic.size(), kMagic) != 0) Fail(path, "not an .npy file");
  // After the magic: version (two bytes), then the header's length in two bytes (version 1) or four.
  const size_t length_bytes = file[6] == 1 ? 2 : 4;
  size_t header_length = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    header_length |= static_cast<size_t>(static_cast<unsigned char>(file[8 + i])) << (8 * i);
  }
  const size_t header_start = 8 + length_bytes;
  if (file.size() < header_start + header_length) Fail(path, "cut short");
  const std::string_view header = std::string_view(file).substr(header_start, header_length);
  if (HeaderField(path, header, "'fortran_order': ", ",}") != "False") Fail(path, "in Fortran order");

  NpyArray array;
  array.shape = ParseShape(HeaderField(path, header, "'shape': (", ")"));
  int64_t count = 1;
  for (int64_t extent : array.shape) count *= extent;
  const std::string_view bytes = std::string_view(file).substr(header_start + header_length);
  const std::string type(HeaderField(path, header, "'descr': '", "'"));
  if (type == "<f4") {
    array.float32 = Values<float>(path, bytes, count);
  } else if (type == "<f8") {
    array.float64 = Values<double>(path, bytes, count);
  } else if (type == "<i8") {
    array.int64 = Values<int64_t>(path, bytes, count);
  } else {
    Fail(path, "type " + type + " is not read here");
  }
  return array;
}

}  // namespace ccs::testing
