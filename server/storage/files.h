// Whole files: reading, writing durably, digests.
#ifndef CCS_SERVER_STORAGE_FILES_H_
#define CCS_SERVER_STORAGE_FILES_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ccs {

struct FileDigest {
  int64_t size = 0;
  std::string xxh3;  // XXH3-128, 32 hexadecimal digits
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

// 32 hexadecimal digits.
std::string DigestOf(std::string_view text);

// All return the errors of ErrnoToStatus().
absl::StatusOr<FileDigest> DigestFile(const std::filesystem::path& path);
absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path);
// Creates or replaces the file and syncs it, not its directory.
absl::Status WriteFile(const std::filesystem::path& path, std::string_view text);
// The paths in a directory, in no order.
absl::StatusOr<std::vector<std::filesystem::path>> ListDirectory(const std::filesystem::path& path);
// Forces a file or directory to disk.
absl::Status Sync(const std::filesystem::path& path);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_FILES_H_
