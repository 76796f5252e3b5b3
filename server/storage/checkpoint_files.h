// A checkpoint's directory as a whole: put in place, copied, removed.
#ifndef CCS_SERVER_STORAGE_CHECKPOINT_FILES_H_
#define CCS_SERVER_STORAGE_CHECKPOINT_FILES_H_

#include <filesystem>

#include "absl/status/status.h"
#include "server/storage/part_folder.h"

namespace ccs {

// In the name of everything that is not a checkpoint yet or no more.
inline constexpr char kLeftoverMark[] = ".tmp-";

// Of RocksDB's files, tables never change once they are written.
bool IsTable(const std::filesystem::path& file);
// A hard link for tables where the file system has them, else a copy.
absl::Status LinkOrCopy(const std::filesystem::path& from, const std::filesystem::path& to);
// Renames the directory `temporary`, whose contents are synced, to `target` beside it, and syncs their
// parent. ALREADY_EXISTS.
absl::Status Publish(const std::filesystem::path& temporary, const std::filesystem::path& target);
// Removes what a former process left half-written or half-removed in the folder.
absl::Status ClearLeftovers(const std::filesystem::path& folder);

// Is it to stay until it is released? An empty file beside the manifest says so, which vouches for the state
// alone.
bool IsKept(const std::filesystem::path& checkpoint);
absl::Status MarkKept(const std::filesystem::path& checkpoint);
// Nothing happens if it is not marked.
absl::Status UnmarkKept(const std::filesystem::path& checkpoint);

// Copies a whole checkpoint into another folder for the same rank and number of shards, or says why not;
// nothing happens if it is there already. Digests are compared of what is on disk afterwards. Tables that
// another checkpoint in `to` has are linked to.
absl::Status CopyCheckpoint(PartFolder& from, PartFolder& to, const CheckpointId& id);
// Under another name first: what is half removed must not look like a damaged checkpoint.
absl::Status RemoveCheckpoint(PartFolder& folder, const CheckpointId& id);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_CHECKPOINT_FILES_H_
