#include "server/replay_samples.h"

#include <spdlog/spdlog.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ccs {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are in little-endian order");

// "\x93NUMPY", version 1.0, a header length in two bytes.
constexpr char kMagic[] = "\x93NUMPY\x01";
constexpr size_t kPrefixBytes = 10;

}  // namespace

absl::StatusOr<std::vector<int64_t>> ReadIndexArray(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat(path.string(), " cannot be read"));
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat(path.string(), " is not a NumPy file of one-dimensional int64"));
  if (bytes.size() < kPrefixBytes || !absl::StartsWith(bytes, kMagic)) return bad;
  uint16_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 8, sizeof header_bytes);
  const size_t start = kPrefixBytes + header_bytes;
  if (bytes.size() < start || (bytes.size() - start) % sizeof(int64_t) != 0) return bad;
  const std::string header = bytes.substr(kPrefixBytes, header_bytes);
  const size_t count = (bytes.size() - start) / sizeof(int64_t);
  if (!absl::StrContains(header, "'<i8'") ||
      !absl::StrContains(header, absl::StrCat("'shape': (", count, ",)"))) {
    return bad;
  }
  std::vector<int64_t> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data() + start, count * sizeof(int64_t));
  return values;
}

SampledRowsOverride ReplaySamples(const std::filesystem::path& folder, int rank) {
  return [directory = folder / absl::StrCat("shard", rank)](int64_t step) {
    absl::StatusOr<std::vector<int64_t>> rows =
        ReadIndexArray(directory / absl::StrCat("sampled_", step, ".npy"));
    if (rows.ok()) return *std::move(rows);
    spdlog::error("step {}: no sampled rows to replay: {}", step, rows.status().ToString());
    return std::vector<int64_t>();
  };
}

}  // namespace ccs
