#include "server/storage/checkpoint_store.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/storage/checkpoint_reader.h"
#include "server/storage/checkpoint_writer.h"
#include "server/storage/directory_lock.h"
#include "server/storage/files.h"
#include "server/storage/manifest.h"
#include "server/storage/status_util.h"
#include "spdlog/spdlog.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

// The inverse of CheckpointId::ToString().
std::optional<CheckpointId> ParseId(const std::string& name) {
  const size_t first = name.find('-');
  const size_t last = name.rfind('-');
  CheckpointId id;
  if (first == std::string::npos || first >= last || !absl::SimpleAtoi(name.substr(0, first), &id.lineage) ||
      !absl::SimpleAtoi(name.substr(first + 1, last - first - 1), &id.step) ||
      !absl::SimpleHexAtoi(name.substr(last + 1), &id.nonce) || id.ToString() != name) {
    return std::nullopt;
  }
  return id;
}

// What is known of checkpoints whose digests have been compared, so that it need not be done again.
class KnownStates {
 public:
  std::optional<bool> IsWhole(const CheckpointId& id) const {
    std::lock_guard lock(mutex_);
    const auto it = whole_.find(id);
    return it == whole_.end() ? std::nullopt : std::optional<bool>(it->second);
  }
  void Set(const CheckpointId& id, bool whole) {
    std::lock_guard lock(mutex_);
    whole_[id] = whole;
  }
  void Forget(const CheckpointId& id) {
    std::lock_guard lock(mutex_);
    whole_.erase(id);
  }

 private:
  mutable std::mutex mutex_;
  std::map<CheckpointId, bool> whole_;
};

class DirectoryStore : public CheckpointStore {
 public:
  DirectoryStore(fs::path directory, int rank, int num_shards)
      : directory_(std::move(directory)), rank_(rank), num_shards_(num_shards) {}

  absl::Status Prepare();

  absl::StatusOr<std::vector<StoredCheckpoint>> List() override {
    std::lock_guard lock(mutex_);
    return ListLocked();
  }
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const CheckpointHeader& header) override;
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId& id) override;
  absl::Status Prune(const CheckpointId& newest, int keep) override;

 private:
  absl::StatusOr<std::vector<StoredCheckpoint>> ListLocked();
  // Reads the manifest and checks the files against it, `deep` with their digests.
  absl::StatusOr<Manifest> Verify(const CheckpointId& id, bool deep);
  absl::StatusOr<Manifest> Load(const CheckpointId& id, bool deep) const;
  absl::Status Remove(const CheckpointId& id);

  const fs::path directory_;
  const int rank_;
  const int num_shards_;
  std::unique_ptr<DirectoryLock> lock_;
  std::mutex mutex_;  // keeps Prune from removing what List or Open looks at
  const std::shared_ptr<KnownStates> known_ =
      std::make_shared<KnownStates>();  // writers may outlive the store
};

absl::Status DirectoryStore::Prepare() {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return ErrnoToStatus(error.value(), "create", directory_);
  absl::StatusOr<std::unique_ptr<DirectoryLock>> lock = DirectoryLock::Acquire(directory_);
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  const absl::StatusOr<std::vector<fs::path>> entries = ListDirectory(directory_);
  if (!entries.ok()) return entries.status();
  for (const fs::path& entry : *entries) {
    if (entry.filename().string().find(kLeftoverMark) == std::string::npos) continue;
    spdlog::info("removing the unfinished checkpoint {}", entry.string());
    fs::remove_all(entry, error);
    if (error) return ErrnoToStatus(error.value(), "remove", entry);
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> DirectoryStore::Verify(const CheckpointId& id, bool deep) {
  absl::StatusOr<Manifest> manifest = Load(id, deep);
  // Other failures may pass.
  if (manifest.ok() || absl::IsDataLoss(manifest.status()) || absl::IsFailedPrecondition(manifest.status())) {
    known_->Set(id, manifest.ok());
  }
  return manifest;
}

absl::StatusOr<Manifest> DirectoryStore::Load(const CheckpointId& id, bool deep) const {
  const fs::path path = directory_ / id.ToString();
  const fs::path manifest_path = path / kManifestName;
  const absl::StatusOr<std::string> text = ReadFile(manifest_path);
  if (absl::IsNotFound(text.status())) {
    return absl::DataLossError(absl::StrCat(manifest_path.string(), " is missing"));
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<Manifest> manifest = ReadManifest(*text);
  if (!manifest.ok()) {
    return absl::Status(manifest.status().code(),
                        absl::StrCat(manifest_path.string(), ": ", manifest.status().message()));
  }
  const CheckpointHeader& header = manifest->header;
  if (header.id != id || header.rank != rank_ || header.num_shards != num_shards_) {
    return absl::DataLossError(
        absl::StrCat(manifest_path.string(), " belongs to another checkpoint or shard"));
  }
  if (absl::Status status = CheckFiles(path, *manifest, deep); !status.ok()) return status;
  return manifest;
}

absl::StatusOr<std::vector<StoredCheckpoint>> DirectoryStore::ListLocked() {
  std::vector<StoredCheckpoint> found;
  const absl::StatusOr<std::vector<fs::path>> entries = ListDirectory(directory_);
  if (!entries.ok()) return entries.status();
  for (const fs::path& entry : *entries) {
    const std::optional<CheckpointId> id = ParseId(entry.filename().string());
    if (!id.has_value()) continue;
    const std::optional<bool> whole = known_->IsWhole(*id);
    if (whole == false) continue;  // logged before
    const absl::StatusOr<Manifest> manifest = Verify(*id, /*deep=*/!whole.has_value());
    if (!manifest.ok()) {
      spdlog::error("checkpoint {} is not offered: {}", id->ToString(), manifest.status().ToString());
      continue;
    }
    found.push_back({manifest->header, manifest->bytes()});
  }
  std::sort(found.begin(), found.end(),
            [](const StoredCheckpoint& a, const StoredCheckpoint& b) { return a.header.id < b.header.id; });
  return found;
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> DirectoryStore::Create(const CheckpointHeader& header) {
  if (header.rank != rank_ || header.num_shards != num_shards_ || header.dim < 1 || header.num_local < 0 ||
      header.class_start < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint of rank ", header.rank, " of ", header.num_shards, ", ", header.num_local,
        " classes from ", header.class_start, ", dim ", header.dim, " in the store of rank ", rank_));
  }
  return MakeCheckpointWriter(directory_, header, [known = known_, id = header.id] { known->Set(id, true); });
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> DirectoryStore::Open(const CheckpointId& id) {
  std::lock_guard lock(mutex_);
  const fs::path path = directory_ / id.ToString();
  if (std::error_code error; !fs::exists(path, error))
    return absl::NotFoundError(absl::StrCat("there is no checkpoint ", path.string()));
  absl::StatusOr<Manifest> manifest = Verify(id, /*deep=*/true);
  if (!manifest.ok()) return manifest.status();
  return MakeCheckpointReader(path, *std::move(manifest));
}

absl::Status DirectoryStore::Prune(const CheckpointId& newest, int keep) {
  std::lock_guard lock(mutex_);
  const absl::StatusOr<std::vector<StoredCheckpoint>> all = ListLocked();
  if (!all.ok()) return all.status();
  int kept = 0;
  for (auto it = all->rbegin(); it != all->rend(); ++it) {
    if (it->header.id > newest || kept++ < std::max(keep, 1)) continue;
    if (absl::Status status = Remove(it->header.id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Under another name first: what is half removed must not look like a damaged checkpoint.
absl::Status DirectoryStore::Remove(const CheckpointId& id) {
  const fs::path path = directory_ / id.ToString();
  const fs::path doomed = absl::StrCat(path.string(), kLeftoverMark, "removed");
  std::error_code error;
  fs::rename(path, doomed, error);
  if (!error) {
    known_->Forget(id);
    fs::remove_all(doomed, error);
  }
  if (error) return ErrnoToStatus(error.value(), "remove", path);
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointId::ToString() const {
  return absl::StrCat(lineage, "-", step, "-", absl::Hex(nonce, absl::kZeroPad16));
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointStore(const fs::path& directory, int rank,
                                                                     int num_shards) {
  auto store = std::make_unique<DirectoryStore>(directory / absl::StrCat("shard-", rank, "-of-", num_shards),
                                                rank, num_shards);
  if (absl::Status status = store->Prepare(); !status.ok()) return status;
  return store;
}

}  // namespace ccs
