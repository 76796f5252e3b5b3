#ifndef CCS_SERVER_STORAGE_CHECKPOINT_WRITER_H_
#define CCS_SERVER_STORAGE_CHECKPOINT_WRITER_H_

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/manifest.h"

namespace ccs {

// Writes into a directory of its own beside the final one, under `shard_directory`. With the manifest of a
// `base` that lies there too, it begins with hard links to the base's tables. `on_commit` is called once the
// checkpoint is in place.
absl::StatusOr<std::unique_ptr<CheckpointWriter>> MakeCheckpointWriter(
    const std::filesystem::path& shard_directory, const CheckpointHeader& header,
    const std::optional<Manifest>& base, std::function<void()> on_commit);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_CHECKPOINT_WRITER_H_
