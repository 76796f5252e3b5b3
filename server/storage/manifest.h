// The manifest of a checkpoint: what it holds, and the size and digest of every file.
#ifndef CCS_SERVER_STORAGE_MANIFEST_H_
#define CCS_SERVER_STORAGE_MANIFEST_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/files.h"

namespace ccs {

inline constexpr int kFormatVersion = 2;
inline constexpr char kManifestName[] = "MANIFEST.json";
inline constexpr char kRowsDirectory[] = "rows";

struct Manifest {
  CheckpointHeader header;
  int64_t rows_per_block = 0;
  std::map<std::string, FileDigest> files;  // by path below the checkpoint's directory

  int64_t bytes() const;  // of all files, without the manifest itself
};

// INVALID_ARGUMENT if the spec is not UTF-8.
absl::StatusOr<std::string> WriteManifest(const Manifest& manifest);

// The inverse, byte for byte: any other text is DATA_LOSS; a format version that this code does not know is
// FAILED_PRECONDITION.
absl::StatusOr<Manifest> ReadManifest(const std::string& text);

// DATA_LOSS, with the file's name, if one of the manifest's files below `directory` is missing or differs: in
// size, and if `deep` in digest.
absl::Status CheckFiles(const std::filesystem::path& directory, const Manifest& manifest, bool deep);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_MANIFEST_H_
