// One shard's folder of checkpoints: what lies in it, and whether it is whole. Only reads.
#ifndef CCS_SERVER_STORAGE_PART_FOLDER_H_
#define CCS_SERVER_STORAGE_PART_FOLDER_H_

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/manifest.h"

namespace ccs {

// "shard-RANK-of-NUM_SHARDS", and its inverse: rank and number of shards.
std::string PartFolderName(int rank, int num_shards);
std::optional<std::pair<int, int>> ParsePartFolderName(const std::string& name);

// Reads <checkpoint_dir>/shard-RANK-of-NUM_SHARDS/, which need not exist. Remembers whose digests have been
// compared. Thread-safe.
class PartFolder {
 public:
  // How closely files are compared with their manifest.
  enum class Depth {
    kSizes,
    kDigestsOnce,  // digests, unless they have been compared before
    kDigests,
  };

  PartFolder(const std::filesystem::path& checkpoint_dir, int rank, int num_shards);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path PathOf(const CheckpointId& id) const { return path_ / id.ToString(); }
  // Of all that have a checkpoint's name, in no order.
  absl::StatusOr<std::vector<CheckpointId>> Ids() const;

  // The manifest, if the checkpoint is whole. DATA_LOSS, naming the file, or FAILED_PRECONDITION for a newer
  // format; both are remembered, and then come back from all but kDigests.
  absl::StatusOr<Manifest> Verify(const CheckpointId& id, Depth depth);
  bool KnownAsDamaged(const CheckpointId& id) const;
  void SetWhole(const CheckpointId& id);
  void Forget(const CheckpointId& id);

 private:
  absl::StatusOr<Manifest> Load(const CheckpointId& id, bool deep) const;
  std::optional<absl::Status> Known(const CheckpointId& id) const;

  const std::filesystem::path path_;
  const int rank_;
  const int num_shards_;
  mutable std::mutex mutex_;
  std::map<CheckpointId, absl::Status> known_;
};

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_PART_FOLDER_H_
