// Rewrites a checkpoint for another number of shards, without a cluster.
#ifndef CCS_SERVER_RESHARD_H_
#define CCS_SERVER_RESHARD_H_

#include <filesystem>
#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace ccs {

struct ReshardOptions {
  std::filesystem::path from;         // a --checkpoint_dir with the folders of all shards that wrote
  std::filesystem::path to;           // a --checkpoint_dir; may be the same
  int num_shards = 0;                 // of the copy
  std::string checkpoint = "latest";  // or an id; "latest" is the newest whole one
};

// The copy has the id, the rows and the records of the original, which is only read. Each shard's part
// appears whole or not at all; parts that are there already, from a run that was interrupted, are verified
// and kept. Tells `progress` what it does. ALREADY_EXISTS if all parts are there; NOT_FOUND or DATA_LOSS
// names what is missing or damaged; FAILED_PRECONDITION while a shard uses a folder that is to be written;
// else the store's.
absl::Status Reshard(const ReshardOptions& options, std::ostream& progress);

// `ccs-server reshard ...`, argv[0] being "reshard". Returns the exit code: 0, 1 for wrong usage, 3
// otherwise.
int RunReshard(int argc, const char* const* argv);

}  // namespace ccs

#endif  // CCS_SERVER_RESHARD_H_
