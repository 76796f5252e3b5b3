#include "server/storage/checkpoint_store.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/storage/checkpoint_files.h"
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
  DirectoryStore(const fs::path& checkpoint_dir, int rank, int num_shards, const fs::path& mirror_dir)
      : rank_(rank),
        num_shards_(num_shards),
        own_(std::make_shared<PartFolder>(checkpoint_dir, rank, num_shards)) {
    foreign_.emplace_back(
        WholeCheckpointsOptions{checkpoint_dir, rank, num_shards, /*except_num_shards=*/num_shards});
    if (mirror_dir.empty()) return;
    mirror_ = std::make_unique<PartFolder>(mirror_dir, rank, num_shards);
    foreign_.emplace_back(
        WholeCheckpointsOptions{mirror_dir, rank, num_shards, /*except_num_shards=*/num_shards});
  }

  absl::Status Prepare();

  absl::StatusOr<std::vector<StoredCheckpoint>> List() override;
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const CheckpointHeader& header,
                                                           const std::optional<CheckpointId>& base) override;
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId& id) override;
  absl::StatusOr<std::vector<StoredCheckpoint>> Prune(const CheckpointId& newest, int keep) override;
  absl::Status Release(const CheckpointId& id) override;
  absl::Status CheckResumable() override;

 private:
  absl::StatusOr<std::vector<StoredCheckpoint>> ListOwn() { return ListFolder(*own_); }
  static absl::StatusOr<std::vector<StoredCheckpoint>> ListFolder(PartFolder& folder);
  absl::Status AddMirrored(std::vector<StoredCheckpoint>* found);
  absl::Status AddForeign(std::vector<StoredCheckpoint>* found);
  absl::Status FetchFromMirror(const CheckpointId& id);
  absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenOwn(const CheckpointId& id);

  const int rank_;
  const int num_shards_;
  const std::shared_ptr<PartFolder> own_;  // writers may outlive the store
  bool was_empty_ = false;                 // the folder, when it was opened
  std::unique_ptr<DirectoryLock> lock_;
  std::mutex mutex_;                                 // keeps Prune from removing what List or Open looks at
  std::unique_ptr<PartFolder> mirror_;               // of this shard; may be null
  std::deque<WholeCheckpoints> foreign_;             // nearer ones first
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
  return ClearLeftovers(own_->path());
}

absl::StatusOr<std::vector<StoredCheckpoint>> DirectoryStore::List() {
  std::lock_guard lock(mutex_);
  absl::StatusOr<std::vector<StoredCheckpoint>> found = ListOwn();
  if (!found.ok()) return found;
  absl::Status status = AddMirrored(&*found);
  if (status.ok()) status = AddForeign(&*found);
  if (!status.ok()) return status;
  std::sort(found->begin(), found->end(), IsOlder);
  return found;
}

absl::StatusOr<std::vector<StoredCheckpoint>> DirectoryStore::ListFolder(PartFolder& folder) {
  std::vector<StoredCheckpoint> found;
  const absl::StatusOr<std::vector<CheckpointId>> ids = folder.Ids();
  if (!ids.ok()) return ids.status();
  for (const CheckpointId& id : *ids) {
    if (folder.KnownAsDamaged(id)) continue;  // logged before
    const absl::StatusOr<Manifest> manifest = folder.Verify(id, PartFolder::Depth::kDigestsOnce);
    if (!manifest.ok()) {
      spdlog::error("checkpoint {} is not offered: {}", id.ToString(), manifest.status().ToString());
      continue;
    }
    found.push_back({manifest->header, manifest->bytes()});
  }
  std::sort(found.begin(), found.end(), IsOlder);
  return found;
}

// Those of this shard that only the mirror has.
absl::Status DirectoryStore::AddMirrored(std::vector<StoredCheckpoint>* found) {
  if (mirror_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<std::vector<StoredCheckpoint>> mirrored = ListFolder(*mirror_);
  if (absl::IsNotFound(mirrored.status())) return absl::OkStatus();  // nothing was mirrored yet
  if (!mirrored.ok()) return mirrored.status();
  std::set<CheckpointId> nearer;
  for (const StoredCheckpoint& stored : *found) nearer.insert(stored.header.id);
  for (const StoredCheckpoint& stored : *mirrored) {
    if (!nearer.contains(stored.header.id)) found->push_back(stored);
  }
  return absl::OkStatus();
}

// Those of other numbers of shards that are not in `found` yet.
absl::Status DirectoryStore::AddForeign(std::vector<StoredCheckpoint>* found) {
  std::set<CheckpointId> nearer;  // the same state
  for (const StoredCheckpoint& stored : *found) nearer.insert(stored.header.id);
  std::map<CheckpointId, std::string> not_offered;
  for (WholeCheckpoints& folders : foreign_) {
    const absl::StatusOr<std::vector<CheckpointId>> ids = folders.Ids();
    if (absl::IsNotFound(ids.status())) continue;  // a mirror that was not made yet
    if (!ids.ok()) return ids.status();
    for (const CheckpointId& id : *ids) {
      if (nearer.contains(id)) continue;
      absl::StatusOr<StoredCheckpoint> stored = folders.Find(id);
      if (stored.ok()) {
        nearer.insert(id);
        not_offered.erase(id);
        found->push_back(*std::move(stored));
        continue;
      }
      not_offered[id] =
          absl::StrCat("checkpoint ", id.ToString(), " is not offered: ", stored.status().ToString());
    }
  }
  for (const auto& [id, why] : not_offered) {
    const auto logged = not_offered_.find(id);
    if (logged == not_offered_.end() || logged->second != why) spdlog::error("{}", why);
  }
  not_offered_ = std::move(not_offered);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> DirectoryStore::Create(
    const CheckpointHeader& header, const std::optional<CheckpointId>& base) {
  if (header.rank != rank_ || header.num_shards != num_shards_ || header.dim < 1 || header.num_local < 0 ||
      header.class_start < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint of rank ", header.rank, " of ", header.num_shards, ", ", header.num_local,
        " classes from ", header.class_start, ", dim ", header.dim, " in the store of rank ", rank_));
  }
  std::optional<Manifest> base_manifest;
  std::lock_guard lock(mutex_);  // the base stays until it is linked
  if (base) {
    if (std::error_code error; !fs::exists(own_->PathOf(*base), error)) {
      return absl::NotFoundError(absl::StrCat("there is no checkpoint ", base->ToString(), " to build on"));
    }
    absl::StatusOr<Manifest> manifest = own_->Verify(*base, PartFolder::Depth::kDigestsOnce);
    if (!manifest.ok()) return manifest.status();
    base_manifest = *std::move(manifest);
  }
  return MakeCheckpointWriter(own_->path(), header, base_manifest,
                              [own = own_, id = header.id] { own->SetWhole(id); });
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> DirectoryStore::Open(const CheckpointId& id) {
  std::lock_guard lock(mutex_);
  absl::StatusOr<std::unique_ptr<CheckpointReader>> own = OpenOwn(id);
  if (own.ok()) return own;
  if (mirror_ != nullptr) {
    absl::Status fetched = FetchFromMirror(id);
    if (fetched.ok()) return OpenOwn(id);
    if (!absl::IsNotFound(fetched)) return fetched;
  }
  for (WholeCheckpoints& folders : foreign_) {
    absl::StatusOr<std::unique_ptr<CheckpointReader>> foreign = folders.Open(id);
    if (foreign.ok()) return foreign;
    if (absl::IsNotFound(own.status())) own = std::move(foreign);
  }
  return own;
}

// What was damaged here stays beside it, for a person to look at.
absl::Status DirectoryStore::FetchFromMirror(const CheckpointId& id) {
  if (std::error_code error; !fs::exists(mirror_->PathOf(id), error)) {
    return absl::NotFoundError(absl::StrCat("the mirror has no checkpoint ", id.ToString()));
  }
  spdlog::warn("checkpoint {} is fetched from the mirror {}", id.ToString(), mirror_->path().string());
  std::error_code error;
  if (fs::exists(own_->PathOf(id), error)) {
    const fs::path aside = absl::StrCat(own_->PathOf(id).string(), ".damaged");
    fs::remove_all(aside, error);
    fs::rename(own_->PathOf(id), aside, error);
    if (error) return ErrnoToStatus(error.value(), "set aside", own_->PathOf(id));
    own_->Forget(id);
  }
  return CopyCheckpoint(*mirror_, *own_, id);
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> DirectoryStore::OpenOwn(const CheckpointId& id) {
  const fs::path path = own_->PathOf(id);
  if (std::error_code error; !fs::exists(path, error))
    return absl::NotFoundError(absl::StrCat("there is no checkpoint ", path.string()));
  absl::StatusOr<Manifest> manifest = own_->Verify(id, PartFolder::Depth::kDigests);
  if (!manifest.ok()) return manifest.status();
  return MakeCheckpointReader(path, *std::move(manifest));
}

absl::StatusOr<std::vector<StoredCheckpoint>> DirectoryStore::Prune(const CheckpointId& newest, int keep) {
  std::lock_guard lock(mutex_);
  const absl::StatusOr<std::vector<StoredCheckpoint>> all = ListOwn();
  if (!all.ok()) return all.status();
  std::vector<StoredCheckpoint> left;
  for (auto it = all->rbegin(); it != all->rend(); ++it) {
    if (it->header.id > newest) continue;
    if (static_cast<int>(left.size()) < std::max(keep, 1)) {
      left.push_back(*it);
    } else if (!it->header.kept) {
      if (absl::Status status = RemoveCheckpoint(*own_, it->header.id); !status.ok()) return status;
    }
  }
  return left;
}

absl::Status DirectoryStore::Release(const CheckpointId& id) {
  std::lock_guard lock(mutex_);
  absl::Status status = absl::NotFoundError(
      absl::StrCat("there is no checkpoint ", id.ToString(), " in ", own_->path().string()));
  for (const PartFolder* folder : {own_.get(), mirror_.get()}) {
    std::error_code error;
    if (folder == nullptr || !fs::exists(folder->PathOf(id), error)) continue;
    status = UnmarkKept(folder->PathOf(id));
    if (!status.ok()) return status;
  }
  return status;
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

}  // namespace

std::string CheckpointId::ToString() const {
  return absl::StrCat(lineage, "-", step, "-", absl::Hex(nonce, absl::kZeroPad16));
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointStore(const fs::path& directory, int rank,
                                                                     int num_shards,
                                                                     const fs::path& mirror_dir) {
  auto store = std::make_unique<DirectoryStore>(directory, rank, num_shards, mirror_dir);
  if (absl::Status status = store->Prepare(); !status.ok()) return status;
  return store;
}

}  // namespace ccs
