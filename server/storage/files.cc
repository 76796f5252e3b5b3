#include "server/storage/files.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/storage/status_util.h"

namespace ccs {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

// Closes on destruction.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

std::string Hex(XXH128_hash_t hash) {
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16), absl::Hex(hash.low64, absl::kZeroPad16));
}

absl::Status ForEachChunk(const std::filesystem::path& path,
                          const std::function<void(std::string_view)>& consume) {
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0) return ErrnoToStatus(errno, "open", path);
  std::vector<char> chunk(kChunkBytes);
  for (;;) {
    const ssize_t bytes = read(file.get(), chunk.data(), chunk.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return ErrnoToStatus(errno, "read", path);
    if (bytes == 0) return absl::OkStatus();
    consume({chunk.data(), static_cast<size_t>(bytes)});
  }
}

}  // namespace

std::string DigestOf(std::string_view text) { return Hex(XXH3_128bits(text.data(), text.size())); }

absl::StatusOr<FileDigest> DigestFile(const std::filesystem::path& path) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  FileDigest digest;
  absl::Status status = ForEachChunk(path, [&](std::string_view chunk) {
    XXH3_128bits_update(state.get(), chunk.data(), chunk.size());
    digest.size += chunk.size();
  });
  if (!status.ok()) return status;
  digest.xxh3 = Hex(XXH3_128bits_digest(state.get()));
  return digest;
}

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::string text;
  absl::Status status = ForEachChunk(path, [&](std::string_view chunk) { text += chunk; });
  if (!status.ok()) return status;
  return text;
}

absl::Status WriteFile(const std::filesystem::path& path, std::string_view text) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.get() < 0) return ErrnoToStatus(errno, "create", path);
  while (!text.empty()) {
    const ssize_t bytes = write(file.get(), text.data(), text.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return ErrnoToStatus(errno, "write", path);
    text.remove_prefix(bytes);
  }
  if (fsync(file.get()) != 0) return ErrnoToStatus(errno, "sync", path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::filesystem::path>> ListDirectory(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  std::filesystem::directory_iterator it(path, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) return ErrnoToStatus(error.value(), "list", path);
  return entries;
}

absl::Status Sync(const std::filesystem::path& path) {
  const Descriptor file(path, O_RDONLY);
  if (file.get() < 0) return ErrnoToStatus(errno, "open", path);
  if (fsync(file.get()) != 0) return ErrnoToStatus(errno, "sync", path);
  return absl::OkStatus();
}

}  // namespace ccs
