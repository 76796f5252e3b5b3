// The step log: what changed one shard's state since a checkpoint, written ahead, so that a crash loses
// nothing.
#ifndef CCS_SERVER_STORAGE_STEP_LOG_H_
#define CCS_SERVER_STORAGE_STEP_LOG_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ccs {

// One change, as its shard needs it to make it again.
struct LogRecord {
  int64_t step = 0;     // the position after the change
  std::string payload;  // the engine's own
};

// What a log holds of one lineage.
struct LoggedLineage {
  uint64_t lineage = 0;
  std::string begin;  // what Begin was given: where the lineage comes from
  int64_t begin_step = 0;
  int64_t first = 1;      // index of the first record; records up to the last follow without a gap
  int64_t last = 0;       // first - 1 when there are none
  int64_t last_step = 0;  // step of the last record, begin_step when there are none
};

// The log of one shard, in RocksDB under <checkpoint_dir>/shard-RANK-of-NUM_SHARDS/log. A lineage begins
// once; its records are numbered from 1. Whatever returns OK is on disk. Errors: RESOURCE_EXHAUSTED for a
// full disk, DATA_LOSS for damage, NOT_FOUND, FAILED_PRECONDITION for a call out of order, otherwise INTERNAL
// with the folder's name. After a failed write every later one fails too, since what is on disk is unknown,
// until List has found out. Thread-safe; calls that write are made by one thread at a time.
class StepLog {
 public:
  virtual ~StepLog() = default;

  // By lineage, oldest first. A record that cannot be read ends its lineage before it. After a failed write,
  // opens what is on disk anew; an error if that cannot be done yet, while the disk is full, say.
  virtual absl::StatusOr<std::vector<LoggedLineage>> List() = 0;
  // Replaces a lineage of this number that has no records, and no other.
  virtual absl::Status Begin(uint64_t lineage, int64_t step, const std::string& begin) = 0;
  // `index` is one more than the last.
  virtual absl::Status Append(uint64_t lineage, int64_t index, const LogRecord& record) = 0;
  // DATA_LOSS if the record is damaged; the lineage then ends before it (List), until Truncate.
  virtual absl::StatusOr<LogRecord> Read(uint64_t lineage, int64_t index) = 0;
  // Removes the lineage's records after `last`.
  virtual absl::Status Truncate(uint64_t lineage, int64_t last) = 0;
  // Nothing before this is needed any more: removes the lineage's records up to `index`, as far as they are
  // still there, and earlier lineages whole. Gives the space back.
  virtual absl::Status Cut(uint64_t lineage, int64_t index) = 0;
};

// Creates the folder if need be. DATA_LOSS if what is there cannot be opened: the caller decides whether it
// is set aside (SetStepLogAside) or the shard stops.
absl::StatusOr<std::unique_ptr<StepLog>> OpenStepLog(const std::filesystem::path& checkpoint_dir, int rank,
                                                     int num_shards);

// Renames a log that cannot be opened, so that a new one can begin; returns its new name.
absl::StatusOr<std::filesystem::path> SetStepLogAside(const std::filesystem::path& checkpoint_dir, int rank,
                                                      int num_shards);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_STEP_LOG_H_
