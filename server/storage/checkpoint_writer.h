#ifndef CCS_SERVER_STORAGE_CHECKPOINT_WRITER_H_
#define CCS_SERVER_STORAGE_CHECKPOINT_WRITER_H_

#include <filesystem>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"

namespace ccs {

// In the name of everything that is not a checkpoint yet or no more.
inline constexpr char kLeftoverMark[] = ".tmp-";

// Writes into a directory of its own beside the final one, under `shard_directory`. `on_commit` is called
// once the checkpoint is in place.
absl::StatusOr<std::unique_ptr<CheckpointWriter>> MakeCheckpointWriter(
    const std::filesystem::path& shard_directory, const CheckpointHeader& header,
    std::function<void()> on_commit);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_CHECKPOINT_WRITER_H_
