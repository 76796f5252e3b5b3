// One process a folder.
#ifndef CCS_SERVER_STORAGE_DIRECTORY_LOCK_H_
#define CCS_SERVER_STORAGE_DIRECTORY_LOCK_H_

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"

namespace ccs {

// The right to write in a folder, held until destroyed; the system takes it back from a process that dies.
class DirectoryLock {
 public:
  // Locks DIRECTORY.lock, a file beside the folder. FAILED_PRECONDITION while anyone else holds it, else
  // the errors of ErrnoToStatus().
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Acquire(const std::filesystem::path& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int file) : file_(file) {}
  const int file_;
};

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_DIRECTORY_LOCK_H_
