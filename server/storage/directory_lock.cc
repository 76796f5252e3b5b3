#include "server/storage/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "server/storage/status_util.h"

namespace ccs {

absl::StatusOr<std::unique_ptr<DirectoryLock>> DirectoryLock::Acquire(
    const std::filesystem::path& directory) {
  const std::filesystem::path path = absl::StrCat(directory.string(), ".lock");
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return ErrnoToStatus(errno, "open", path);
  std::unique_ptr<DirectoryLock> lock(new DirectoryLock(file));
  if (flock(file, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return ErrnoToStatus(errno, "lock", path);
  return absl::FailedPreconditionError(absl::StrCat(
      directory.string(), " is in use by another process: is a shard of this rank running already?"));
}

DirectoryLock::~DirectoryLock() { close(file_); }

}  // namespace ccs
