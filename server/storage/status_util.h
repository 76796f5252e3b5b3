// Foreign errors of the storage layer become statuses here and nowhere else.
#ifndef CCS_SERVER_STORAGE_STATUS_UTIL_H_
#define CCS_SERVER_STORAGE_STATUS_UTIL_H_

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rocksdb/status.h"

namespace ccs {

// RESOURCE_EXHAUSTED for a full disk or quota, NOT_FOUND for a missing file, otherwise INTERNAL; the message
// says what was attempted on which file.
absl::Status ErrnoToStatus(int error, absl::string_view action, const std::filesystem::path& path);

// RESOURCE_EXHAUSTED for a full disk, NOT_FOUND, DATA_LOSS for corruption, otherwise INTERNAL.
absl::Status RocksToStatus(const rocksdb::Status& status, const std::filesystem::path& path);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_STATUS_UTIL_H_
