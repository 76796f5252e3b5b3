#ifndef CCS_SERVER_STORAGE_CHECKPOINT_READER_H_
#define CCS_SERVER_STORAGE_CHECKPOINT_READER_H_

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/manifest.h"

namespace ccs {

// Opens a checkpoint whose files have been checked against `manifest`; changes none of them.
absl::StatusOr<std::unique_ptr<CheckpointReader>> MakeCheckpointReader(const std::filesystem::path& directory,
                                                                       Manifest manifest);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_CHECKPOINT_READER_H_
