#include "server/storage/status_util.h"

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ccs {

absl::Status ErrnoToStatus(int error, absl::string_view action, const std::filesystem::path& path) {
  const std::string message =
      absl::StrCat("cannot ", action, " ", path.string(), ": ", std::generic_category().message(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    case ENOENT:
      return absl::NotFoundError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status RocksToStatus(const rocksdb::Status& status, const std::filesystem::path& path) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("RocksDB in ", path.string(), ": ", status.ToString());
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  if (status.IsNotFound()) return absl::NotFoundError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  return absl::InternalError(message);
}

}  // namespace ccs
