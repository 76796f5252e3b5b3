// Checkpoints of whole clusters, put together from the folders of all the shards that wrote them.
#ifndef CCS_SERVER_STORAGE_WHOLE_CHECKPOINTS_H_
#define CCS_SERVER_STORAGE_WHOLE_CHECKPOINTS_H_

#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/part_folder.h"
#include "server/storage/stitched_reader.h"

namespace ccs {

struct WholeCheckpointsOptions {
  std::filesystem::path checkpoint_dir;
  // Who reads: files are compared with their digests where classes of this shard are in them, elsewhere only
  // with their sizes.
  int rank = 0;
  int num_shards = 1;
  int except_num_shards = 0;  // checkpoints of so many shards are left out
};

// Folders are only read, and neither locked nor cleared: they may be another cluster's. What that cluster
// removes meanwhile is an error for the reader, never wrong rows. Not thread-safe.
class WholeCheckpoints {
 public:
  explicit WholeCheckpoints(WholeCheckpointsOptions options) : options_(std::move(options)) {}

  // Of which at least one part is there, oldest first.
  absl::StatusOr<std::vector<CheckpointId>> Ids();

  // What is known of it if it is whole: valid manifests of one spec and width from all shards, their class
  // ranges following one another without gap, files as they say. The header is that of Open(). Bytes are this
  // reader's share: those of all ranks add up to the whole. DATA_LOSS names every part that is missing, or
  // the first damaged file; NOT_FOUND if there is no part.
  absl::StatusOr<StoredCheckpoint> Find(const CheckpointId& id);
  // Reads any classes. Compares the digests again.
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId& id);

 private:
  using Folders = std::map<int, std::unique_ptr<PartFolder>>;  // by rank

  absl::Status Scan();  // which folders there are
  // Of the first number of shards of which the checkpoint is whole.
  absl::StatusOr<std::vector<CheckpointPart>> Gather(const CheckpointId& id, PartFolder::Depth depth);
  absl::Status CheckNoneMissing(int num_shards, const Folders& folders, const CheckpointId& id) const;
  absl::StatusOr<std::vector<CheckpointPart>> GatherOf(int num_shards, const Folders& folders,
                                                       const CheckpointId& id, PartFolder::Depth depth) const;

  const WholeCheckpointsOptions options_;
  std::map<int, Folders> folders_;  // by number of shards
};

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_WHOLE_CHECKPOINTS_H_
