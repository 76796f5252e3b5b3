// All parts of a checkpoint read as one.
#ifndef CCS_SERVER_STORAGE_STITCHED_READER_H_
#define CCS_SERVER_STORAGE_STITCHED_READER_H_

#include <filesystem>
#include <memory>
#include <vector>

#include "server/storage/checkpoint_store.h"
#include "server/storage/manifest.h"

namespace ccs {

// What one shard wrote of a checkpoint.
struct CheckpointPart {
  std::filesystem::path directory;
  Manifest manifest;
  bool compared = false;  // digests, with the files
};

// `parts` in rank order, at least one, their class ranges following one another from 0. The header is of rank
// 0 and of all classes. Digests not compared yet are before rows are read. Records are those of part 0, read
// with no more than RocksDB's own checks: what they say of the cluster, every part says.
std::unique_ptr<CheckpointReader> MakeStitchedReader(std::vector<CheckpointPart> parts);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_STITCHED_READER_H_
