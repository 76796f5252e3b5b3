#include "server/storage/part_folder.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/storage/checkpoint_files.h"
#include "server/storage/files.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

// The inverse of CheckpointId::ToString().
std::optional<CheckpointId> ParseId(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '-');
  CheckpointId id;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &id.lineage) ||
      !absl::SimpleAtoi(parts[1], &id.step) || !absl::SimpleHexAtoi(parts[2], &id.nonce) ||
      id.ToString() != name) {
    return std::nullopt;
  }
  return id;
}

}  // namespace

std::string PartFolderName(int rank, int num_shards) {
  return absl::StrCat("shard-", rank, "-of-", num_shards);
}

std::optional<std::pair<int, int>> ParsePartFolderName(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '-');
  int rank = 0;
  int num_shards = 0;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[1], &rank) || !absl::SimpleAtoi(parts[3], &num_shards) ||
      rank < 0 || rank >= num_shards || PartFolderName(rank, num_shards) != name) {
    return std::nullopt;
  }
  return std::pair(rank, num_shards);
}

PartFolder::PartFolder(const fs::path& checkpoint_dir, int rank, int num_shards)
    : path_(checkpoint_dir / PartFolderName(rank, num_shards)), rank_(rank), num_shards_(num_shards) {}

absl::StatusOr<std::vector<CheckpointId>> PartFolder::Ids() const {
  const absl::StatusOr<std::vector<fs::path>> entries = ListDirectory(path_);
  if (!entries.ok()) return entries.status();
  std::vector<CheckpointId> ids;
  for (const fs::path& entry : *entries) {
    if (const std::optional<CheckpointId> id = ParseId(entry.filename().string())) ids.push_back(*id);
  }
  return ids;
}

absl::StatusOr<Manifest> PartFolder::Verify(const CheckpointId& id, Depth depth) {
  const std::optional<absl::Status> known = Known(id);
  if (depth != Depth::kDigests && known.has_value() && !known->ok()) return *known;
  const bool deep = depth == Depth::kDigests || (depth == Depth::kDigestsOnce && !known.has_value());
  absl::StatusOr<Manifest> manifest = Load(id, deep);
  // Other failures may pass.
  const bool lasts = absl::IsDataLoss(manifest.status()) || absl::IsFailedPrecondition(manifest.status());
  if (lasts || (manifest.ok() && deep)) {
    std::lock_guard lock(mutex_);
    known_[id] = manifest.status();
  }
  return manifest;
}

absl::StatusOr<Manifest> PartFolder::Load(const CheckpointId& id, bool deep) const {
  const fs::path manifest_path = PathOf(id) / kManifestName;
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
  if (absl::Status status = CheckFiles(PathOf(id), *manifest, deep); !status.ok()) return status;
  manifest->header.kept = IsKept(PathOf(id));
  return manifest;
}

std::optional<absl::Status> PartFolder::Known(const CheckpointId& id) const {
  std::lock_guard lock(mutex_);
  const auto it = known_.find(id);
  return it == known_.end() ? std::nullopt : std::optional<absl::Status>(it->second);
}

bool PartFolder::KnownAsDamaged(const CheckpointId& id) const {
  const std::optional<absl::Status> known = Known(id);
  return known.has_value() && !known->ok();
}

void PartFolder::SetWhole(const CheckpointId& id) {
  std::lock_guard lock(mutex_);
  known_[id] = absl::OkStatus();
}

void PartFolder::Forget(const CheckpointId& id) {
  std::lock_guard lock(mutex_);
  known_.erase(id);
}

}  // namespace ccs
