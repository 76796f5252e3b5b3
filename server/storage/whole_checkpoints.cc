#include "server/storage/whole_checkpoints.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/layout.h"
#include "server/storage/files.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostNamed = 8;  // parts that are missing

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Does `next` go on where `parts` end?
absl::Status CheckFits(const std::vector<CheckpointPart>& parts, const CheckpointPart& next) {
  const CheckpointHeader& header = next.manifest.header;
  const std::string name = (next.directory / kManifestName).string();
  int64_t expected = 0;
  if (!parts.empty()) {
    const CheckpointHeader& last = parts.back().manifest.header;
    expected = last.class_start + last.num_local;
    if (header.spec != last.spec || header.dim != last.dim) {
      return absl::DataLossError(absl::StrCat(name, " is of another model than that of rank ", last.rank));
    }
  }
  if (header.class_start == expected) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(name, " begins at class ", header.class_start, " instead of ", expected));
}

}  // namespace

absl::Status WholeCheckpoints::Scan() {
  const absl::StatusOr<std::vector<fs::path>> entries = ListDirectory(options_.checkpoint_dir);
  if (!entries.ok()) return entries.status();
  std::map<int, Folders> found;
  for (const fs::path& entry : *entries) {
    const auto name = ParsePartFolderName(entry.filename().string());
    std::error_code ignored;
    if (!name.has_value() || name->second == options_.except_num_shards || !fs::is_directory(entry, ignored))
      continue;
    const auto [rank, num_shards] = *name;
    std::unique_ptr<PartFolder>& known = folders_[num_shards][rank];  // with what it remembers
    found[num_shards][rank] = known != nullptr
                                  ? std::move(known)
                                  : std::make_unique<PartFolder>(options_.checkpoint_dir, rank, num_shards);
  }
  folders_ = std::move(found);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CheckpointId>> WholeCheckpoints::Ids() {
  if (absl::Status status = Scan(); !status.ok()) return status;
  std::set<CheckpointId> ids;
  for (const auto& [num_shards, folders] : folders_) {
    for (const auto& [rank, folder] : folders) {
      const absl::StatusOr<std::vector<CheckpointId>> part = folder->Ids();
      if (absl::IsNotFound(part.status())) continue;  // removed since
      if (!part.ok()) return part.status();
      ids.insert(part->begin(), part->end());
    }
  }
  return std::vector<CheckpointId>(ids.begin(), ids.end());
}

absl::Status WholeCheckpoints::CheckNoneMissing(int num_shards, const Folders& folders,
                                                const CheckpointId& id) const {
  std::vector<std::string> missing;
  for (int rank = 0; rank < num_shards && missing.size() <= kMostNamed; ++rank) {
    const auto folder = folders.find(rank);
    if (missing.size() == kMostNamed) {
      missing.push_back("maybe more");
    } else if (folder == folders.end()) {
      missing.push_back((options_.checkpoint_dir / PartFolderName(rank, num_shards)).string());
    } else if (!Exists(folder->second->PathOf(id))) {
      missing.push_back(folder->second->PathOf(id).string());
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(absl::StrJoin(missing, " and "), missing.size() == 1 ? " is" : " are", " missing"));
}

absl::StatusOr<std::vector<CheckpointPart>> WholeCheckpoints::GatherOf(int num_shards, const Folders& folders,
                                                                       const CheckpointId& id,
                                                                       PartFolder::Depth depth) const {
  if (absl::Status status = CheckNoneMissing(num_shards, folders, id); !status.ok()) return status;
  std::vector<CheckpointPart> parts;
  for (const auto& [rank, folder] : folders) {
    absl::StatusOr<Manifest> manifest = folder->Verify(id, PartFolder::Depth::kSizes);
    if (!manifest.ok()) return manifest.status();
    CheckpointPart part{folder->PathOf(id), *std::move(manifest)};
    if (absl::Status status = CheckFits(parts, part); !status.ok()) return status;
    parts.push_back(std::move(part));
  }
  const CheckpointHeader& last = parts.back().manifest.header;
  const ClassRange own = ClassRangeOf(last.class_start + last.num_local, options_.num_shards, options_.rank);
  for (CheckpointPart& part : parts) {
    const CheckpointHeader& header = part.manifest.header;
    const bool overlaps = std::max(header.class_start, own.start) <
                          std::min(header.class_start + header.num_local, own.start + own.count);
    if (!overlaps) continue;
    absl::StatusOr<Manifest> manifest = folders.at(header.rank)->Verify(id, depth);
    if (!manifest.ok()) return manifest.status();
    part.compared = true;
  }
  return parts;
}

absl::StatusOr<std::vector<CheckpointPart>> WholeCheckpoints::Gather(const CheckpointId& id,
                                                                     PartFolder::Depth depth) {
  if (absl::Status status = Scan(); !status.ok()) return status;
  absl::Status failed = absl::NotFoundError(
      absl::StrCat("there is no checkpoint ", id.ToString(), " below ", options_.checkpoint_dir.string()));
  for (const auto& [num_shards, folders] : folders_) {
    const bool there = std::any_of(folders.begin(), folders.end(),
                                   [&](const auto& folder) { return Exists(folder.second->PathOf(id)); });
    if (!there) continue;
    absl::StatusOr<std::vector<CheckpointPart>> parts = GatherOf(num_shards, folders, id, depth);
    if (parts.ok()) return parts;
    failed = absl::Status(parts.status().code(), absl::StrCat("written by ", num_shards, " shards, of which ",
                                                              parts.status().message()));
  }
  return failed;
}

absl::StatusOr<StoredCheckpoint> WholeCheckpoints::Find(const CheckpointId& id) {
  absl::StatusOr<std::vector<CheckpointPart>> parts = Gather(id, PartFolder::Depth::kDigestsOnce);
  if (!parts.ok()) return parts.status();
  StoredCheckpoint stored;
  for (const CheckpointPart& part : *parts) {
    const bool mine = part.manifest.header.rank % options_.num_shards == options_.rank;
    if (mine) stored.bytes += part.manifest.bytes();
  }
  stored.header = MakeStitchedReader(*std::move(parts))->header();
  return stored;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> WholeCheckpoints::Open(const CheckpointId& id) {
  absl::StatusOr<std::vector<CheckpointPart>> parts = Gather(id, PartFolder::Depth::kDigests);
  if (!parts.ok()) return parts.status();
  return MakeStitchedReader(*std::move(parts));
}

}  // namespace ccs
