#include "server/storage/checkpoint_files.h"

#include <cerrno>
#include <cstdio>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/storage/files.h"
#include "server/storage/status_util.h"
#include "spdlog/spdlog.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

absl::Status CopyFile(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, error);
  return error ? ErrnoToStatus(error.value(), "copy", from) : absl::OkStatus();
}

constexpr char kKeepName[] = "KEEP";

// Removes a directory, unless it was renamed, on destruction.
class Temporary {
 public:
  explicit Temporary(fs::path path) : path_(std::move(path)) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

 private:
  const fs::path path_;
};

// Tables in a folder, by name and digest.
std::map<std::pair<std::string, std::string>, fs::path> TablesIn(PartFolder& folder) {
  std::map<std::pair<std::string, std::string>, fs::path> tables;
  const absl::StatusOr<std::vector<CheckpointId>> ids = folder.Ids();
  if (!ids.ok()) return tables;
  for (const CheckpointId& id : *ids) {
    const absl::StatusOr<Manifest> manifest = folder.Verify(id, PartFolder::Depth::kSizes);
    if (!manifest.ok()) continue;
    for (const auto& [name, digest] : manifest->files) {
      if (IsTable(name)) tables[{name, digest.xxh3}] = folder.PathOf(id) / name;
    }
  }
  return tables;
}

}  // namespace

bool IsTable(const fs::path& file) { return file.extension() == ".sst"; }

absl::Status LinkOrCopy(const fs::path& from, const fs::path& to) {
  if (!IsTable(from)) return CopyFile(from, to);
  std::error_code error;
  fs::create_hard_link(from, to, error);
  if (!error) return absl::OkStatus();
  spdlog::debug("{} cannot be linked and is copied: {}", from.string(), error.message());
  return CopyFile(from, to);
}

absl::Status Publish(const fs::path& temporary, const fs::path& target) {
  if (std::rename(temporary.c_str(), target.c_str()) != 0) {
    if (errno == EEXIST || errno == ENOTEMPTY) {
      return absl::AlreadyExistsError(absl::StrCat(target.string(), " exists"));
    }
    return ErrnoToStatus(errno, "create", target);
  }
  return Sync(target.parent_path());
}

absl::Status ClearLeftovers(const fs::path& folder) {
  const absl::StatusOr<std::vector<fs::path>> entries = ListDirectory(folder);
  if (!entries.ok()) return entries.status();
  for (const fs::path& entry : *entries) {
    if (entry.filename().string().find(kLeftoverMark) == std::string::npos) continue;
    spdlog::info("removing the unfinished checkpoint {}", entry.string());
    std::error_code error;
    fs::remove_all(entry, error);
    if (error) return ErrnoToStatus(error.value(), "remove", entry);
  }
  return absl::OkStatus();
}

bool IsKept(const fs::path& checkpoint) {
  std::error_code ignored;
  return fs::exists(checkpoint / kKeepName, ignored);
}

absl::Status MarkKept(const fs::path& checkpoint) {
  absl::Status status = WriteFile(checkpoint / kKeepName, "");
  return status.ok() ? Sync(checkpoint) : status;
}

absl::Status UnmarkKept(const fs::path& checkpoint) {
  std::error_code error;
  const bool removed = fs::remove(checkpoint / kKeepName, error);
  if (error) return ErrnoToStatus(error.value(), "remove", checkpoint / kKeepName);
  return removed ? Sync(checkpoint) : absl::OkStatus();
}

absl::Status CopyCheckpoint(PartFolder& from, PartFolder& to, const CheckpointId& id) {
  const fs::path target = to.PathOf(id);
  std::error_code error;
  if (fs::exists(target, error)) return to.Verify(id, PartFolder::Depth::kDigestsOnce).status();
  if (!fs::exists(from.PathOf(id), error)) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint ", from.PathOf(id).string()));
  }
  const absl::StatusOr<Manifest> manifest = from.Verify(id, PartFolder::Depth::kSizes);
  if (!manifest.ok()) return manifest.status();
  const auto known = TablesIn(to);

  const fs::path directory = absl::StrCat(target.string(), kLeftoverMark, "copy");
  const Temporary temporary(directory);
  fs::create_directories(directory / kRowsDirectory, error);
  if (error) return ErrnoToStatus(error.value(), "create", directory);
  for (const auto& [name, digest] : manifest->files) {
    const auto there = known.find({name, digest.xxh3});
    absl::Status status = there == known.end() ? CopyFile(from.PathOf(id) / name, directory / name)
                                               : LinkOrCopy(there->second, directory / name);
    if (status.ok()) status = Sync(directory / name);
    if (!status.ok()) return status;
  }
  absl::Status status = CheckFiles(directory, *manifest, /*deep=*/true);
  if (status.ok()) status = Sync(directory / kRowsDirectory);
  const absl::StatusOr<std::string> text = WriteManifest(*manifest);
  if (!text.ok()) return text.status();
  if (status.ok()) status = WriteFile(directory / kManifestName, *text);
  if (status.ok()) status = manifest->header.kept ? MarkKept(directory) : Sync(directory);
  if (status.ok()) status = Publish(directory, target);
  if (!status.ok()) return status;
  to.SetWhole(id);
  return IsKept(from.PathOf(id)) ? absl::OkStatus() : UnmarkKept(target);  // it may be released meanwhile
}

absl::Status RemoveCheckpoint(PartFolder& folder, const CheckpointId& id) {
  const fs::path path = folder.PathOf(id);
  const fs::path doomed = absl::StrCat(path.string(), kLeftoverMark, "removed");
  std::error_code error;
  fs::rename(path, doomed, error);
  if (!error) {
    folder.Forget(id);
    fs::remove_all(doomed, error);
  }
  if (error) return ErrnoToStatus(error.value(), "remove", path);
  return absl::OkStatus();
}

}  // namespace ccs
