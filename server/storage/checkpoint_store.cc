#include "server/storage/checkpoint_store.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/storage/checkpoint_reader.h"
#include "server/storage/checkpoint_writer.h"
#include "server/storage/directory_lock.h"
#include "server/storage/files.h"
#include "server/storage/manifest.h"
#include "server/storage/part_folder.h"
#include "server/storage/status_util.h"
#include "server/storage/whole_checkpoints.h"
#include "spdlog/spdlog.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

bool IsOlder(const StoredCheckpoint& a, const StoredCheckpoint& b) { return a.header.id < b.header.id; }

class DirectoryStore : public CheckpointStore {
 public:
  DirectoryStore(const fs::path& checkpoint_dir, int rank, int num_shards)
      : rank_(rank),
        num_shards_(num_shards),
        own_(std::make_shared<PartFolder>(checkpoint_dir, rank, num_shards)),
        foreign_({checkpoint_dir, rank, num_shards, /*except_num_shards=*/num_shards}) {}

  absl::Status Prepare();

  absl::StatusOr<std::vector<StoredCheckpoint>> List() override;
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const CheckpointHeader& header) override;
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId& id) override;
  absl::Status Prune(const CheckpointId& newest, int keep) override;
  absl::Status CheckResumable() override;

 private:
  absl::StatusOr<std::vector<StoredCheckpoint>> ListOwn();
  absl::Status AddForeign(std::vector<StoredCheckpoint>* found);
  absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenOwn(const CheckpointId& id);
  absl::Status Remove(const CheckpointId& id);

  const int rank_;
  const int num_shards_;
  const std::shared_ptr<PartFolder> own_;  // writers may outlive the store
  bool was_empty_ = false;                 // the folder, when it was opened
  std::unique_ptr<DirectoryLock> lock_;
  std::mutex mutex_;  // keeps Prune from removing what List or Open looks at
  WholeCheckpoints foreign_;
  std::map<CheckpointId, std::string> not_offered_;  // foreign ones, and why
};

absl::Status DirectoryStore::Prepare() {
  std::error_code error;
  fs::create_directories(own_->path(), error);
  if (error) return ErrnoToStatus(error.value(), "create", own_->path());
  absl::StatusOr<std::unique_ptr<DirectoryLock>> lock = DirectoryLock::Acquire(own_->path());
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  const absl::StatusOr<std::vector<fs::path>> entries = ListDirectory(own_->path());
  if (!entries.ok()) return entries.status();
  was_empty_ = entries->empty();
  for (const fs::path& entry : *entries) {
    if (entry.filename().string().find(kLeftoverMark) == std::string::npos) continue;
    spdlog::info("removing the unfinished checkpoint {}", entry.string());
    fs::remove_all(entry, error);
    if (error) return ErrnoToStatus(error.value(), "remove", entry);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredCheckpoint>> DirectoryStore::List() {
  std::lock_guard lock(mutex_);
  absl::StatusOr<std::vector<StoredCheckpoint>> found = ListOwn();
  if (!found.ok()) return found;
  if (absl::Status status = AddForeign(&*found); !status.ok()) return status;
  std::sort(found->begin(), found->end(), IsOlder);
  return found;
}

absl::StatusOr<std::vector<StoredCheckpoint>> DirectoryStore::ListOwn() {
  std::vector<StoredCheckpoint> found;
  const absl::StatusOr<std::vector<CheckpointId>> ids = own_->Ids();
  if (!ids.ok()) return ids.status();
  for (const CheckpointId& id : *ids) {
    if (own_->KnownAsDamaged(id)) continue;  // logged before
    const absl::StatusOr<Manifest> manifest = own_->Verify(id, PartFolder::Depth::kDigestsOnce);
    if (!manifest.ok()) {
      spdlog::error("checkpoint {} is not offered: {}", id.ToString(), manifest.status().ToString());
      continue;
    }
    found.push_back({manifest->header, manifest->bytes()});
  }
  std::sort(found.begin(), found.end(), IsOlder);
  return found;
}

// Those of other numbers of shards that are not in `found` yet.
absl::Status DirectoryStore::AddForeign(std::vector<StoredCheckpoint>* found) {
  std::set<CheckpointId> own;
  for (const StoredCheckpoint& stored : *found) own.insert(stored.header.id);
  const absl::StatusOr<std::vector<CheckpointId>> ids = foreign_.Ids();
  if (!ids.ok()) return ids.status();
  std::map<CheckpointId, std::string> not_offered;
  for (const CheckpointId& id : *ids) {
    if (own.contains(id)) continue;  // the same state, and nearer
    absl::StatusOr<StoredCheckpoint> stored = foreign_.Find(id);
    if (stored.ok()) {
      found->push_back(*std::move(stored));
      continue;
    }
    std::string& why = not_offered[id];
    why = absl::StrCat("checkpoint ", id.ToString(), " is not offered: ", stored.status().ToString());
    if (const auto logged = not_offered_.find(id); logged == not_offered_.end() || logged->second != why) {
      spdlog::error("{}", why);
    }
  }
  not_offered_ = std::move(not_offered);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> DirectoryStore::Create(const CheckpointHeader& header) {
  if (header.rank != rank_ || header.num_shards != num_shards_ || header.dim < 1 || header.num_local < 0 ||
      header.class_start < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint of rank ", header.rank, " of ", header.num_shards, ", ", header.num_local,
        " classes from ", header.class_start, ", dim ", header.dim, " in the store of rank ", rank_));
  }
  return MakeCheckpointWriter(own_->path(), header, [own = own_, id = header.id] { own->SetWhole(id); });
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> DirectoryStore::Open(const CheckpointId& id) {
  std::lock_guard lock(mutex_);
  absl::StatusOr<std::unique_ptr<CheckpointReader>> own = OpenOwn(id);
  if (own.ok()) return own;
  absl::StatusOr<std::unique_ptr<CheckpointReader>> foreign = foreign_.Open(id);
  const bool only_foreign = absl::IsNotFound(own.status()) && !absl::IsNotFound(foreign.status());
  return foreign.ok() || only_foreign ? std::move(foreign) : std::move(own);
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> DirectoryStore::OpenOwn(const CheckpointId& id) {
  const fs::path path = own_->PathOf(id);
  if (std::error_code error; !fs::exists(path, error))
    return absl::NotFoundError(absl::StrCat("there is no checkpoint ", path.string()));
  absl::StatusOr<Manifest> manifest = own_->Verify(id, PartFolder::Depth::kDigests);
  if (!manifest.ok()) return manifest.status();
  return MakeCheckpointReader(path, *std::move(manifest));
}

absl::Status DirectoryStore::Prune(const CheckpointId& newest, int keep) {
  std::lock_guard lock(mutex_);
  const absl::StatusOr<std::vector<StoredCheckpoint>> all = ListOwn();
  if (!all.ok()) return all.status();
  int kept = 0;
  for (auto it = all->rbegin(); it != all->rend(); ++it) {
    if (it->header.id > newest || kept++ < std::max(keep, 1)) continue;
    if (absl::Status status = Remove(it->header.id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DirectoryStore::CheckResumable() {
  const absl::StatusOr<std::vector<StoredCheckpoint>> all = List();
  if (!all.ok()) return all.status();
  std::lock_guard lock(mutex_);
  if (!was_empty_ || !all->empty() || not_offered_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("there are checkpoints of other numbers of shards, but none that is whole: ",
                   not_offered_.rbegin()->second));
}

// Under another name first: what is half removed must not look like a damaged checkpoint.
absl::Status DirectoryStore::Remove(const CheckpointId& id) {
  const fs::path path = own_->PathOf(id);
  const fs::path doomed = absl::StrCat(path.string(), kLeftoverMark, "removed");
  std::error_code error;
  fs::rename(path, doomed, error);
  if (!error) {
    own_->Forget(id);
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
  auto store = std::make_unique<DirectoryStore>(directory, rank, num_shards);
  if (absl::Status status = store->Prepare(); !status.ok()) return status;
  return store;
}

}  // namespace ccs
