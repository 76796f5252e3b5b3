// One shard's checkpoints on disk: RocksDB for the rows, a manifest beside it that vouches for every file.
// The format is described in FORMAT.md.
#ifndef CCS_SERVER_STORAGE_CHECKPOINT_STORE_H_
#define CCS_SERVER_STORAGE_CHECKPOINT_STORE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ccs {

// Names a checkpoint of the whole cluster. Two attempts at the same step differ in the nonce.
struct CheckpointId {
  uint64_t lineage = 0;
  int64_t step = 0;
  uint64_t nonce = 0;

  std::string ToString() const;  // "LINEAGE-STEP-NONCE", the nonce in 16 hexadecimal digits
  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
};

// What a checkpoint says of itself.
struct CheckpointHeader {
  CheckpointId id;
  int64_t index = 0;   // of the last change of the lineage that it contains, see step_log.h
  int rank = 0;        // 0 for one of another number of shards than the reader's
  int num_shards = 1;  // that wrote it
  int64_t class_start = 0;
  int64_t num_local = 0;  // all classes for one of another number of shards
  int dim = 0;
  std::string spec;  // the model spec as text, compared before loading
  absl::Time created;
  bool kept = false;  // stays, however many follow, until it is released
};

struct StoredCheckpoint {
  CheckpointHeader header;
  int64_t bytes = 0;  // on disk; this shard's part, or its share of one of another number of shards
};

// Rows of width `dim` that are written together: as many as 4 KiB of weights and momentum hold, at least one.
// Blocks are aligned to global class ids: class c belongs to block c / RowsPerBlock(dim).
int64_t RowsPerBlock(int dim);

struct CheckpointSize {
  int64_t bytes = 0;      // on disk
  int64_t new_bytes = 0;  // of them, not shared with the checkpoint that it builds on
};

// Writes one checkpoint. Nothing is offered to readers before Commit returns OK; destroying an uncommitted
// writer removes what it wrote. Not thread-safe.
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;
  // Rows of global classes [first_class, first_class + num_rows), [num_rows, dim] each: goes on where the
  // last call ended, or, between two blocks, begins at any block that has not been written. By Commit the
  // header's range must be covered, unless the checkpoint builds on another.
  virtual absl::Status AddRows(int64_t first_class, int64_t num_rows, const float* weight,
                               const float* momentum) = 0;
  // A named record of the cluster's own (the run ledger).
  virtual absl::Status AddRecord(const std::string& name, const std::string& value) = 0;
  // Syncs every file, writes the manifest and renames the checkpoint into place.
  virtual absl::StatusOr<CheckpointSize> Commit() = 0;
};

// Reads one checkpoint whose manifest has been verified. Not thread-safe.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;
  virtual const CheckpointHeader& header() const = 0;
  // DATA_LOSS if a row is missing or damaged.
  virtual absl::Status ReadRows(int64_t first_class, int64_t num_rows, float* weight, float* momentum) = 0;
  // All records, by name.
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadRecords() = 0;
};

// The checkpoints of one shard, under <directory>/shard-RANK-of-NUM_SHARDS/. Those of other numbers of shards
// in the folders beside it can be read, if all of their parts are there. Nothing there is locked, cleared or
// removed, since another cluster may own them. Errors: RESOURCE_EXHAUSTED for
// a full disk, DATA_LOSS for damage, NOT_FOUND, otherwise INTERNAL with the file's name. Thread-safe: one
// thread may write while another lists.
class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;

  // Whole checkpoints, oldest (smallest id) first: every file of the manifest is there with its size and
  // digest. Half-written leftovers are not listed; damaged ones are logged and not listed, nor are those of
  // another number of shards of which a part is missing or damaged, as far as this shard's classes need it.
  virtual absl::StatusOr<std::vector<StoredCheckpoint>> List() = 0;
  // With a `base`, a whole checkpoint of this shard, rows that are not added are as there, and its files are
  // shared, not written again. NOT_FOUND, DATA_LOSS or FAILED_PRECONDITION if that cannot be built on.
  virtual absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const CheckpointHeader& header, const std::optional<CheckpointId>& base) = 0;
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const CheckpointHeader& header) {
    return Create(header, std::nullopt);
  }
  // One of another number of shards reads any class, not just this shard's.
  virtual absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId& id) = 0;
  // Of the whole checkpoints of its own at or below `newest`, removes all but the `keep` newest, at least
  // one, and those whose header says that they are kept. Returns the `keep` newest, newest first.
  virtual absl::StatusOr<std::vector<StoredCheckpoint>> Prune(const CheckpointId& newest, int keep) = 0;
  // The checkpoint is no longer kept for its own sake: the next Prune treats it like any other. In the mirror
  // too. NOT_FOUND.
  virtual absl::Status Release(const CheckpointId& id) = 0;
  // For a shard that is to resume. FAILED_PRECONDITION, naming what is missing, if its folder was new and
  // there are checkpoints of other numbers of shards but none is whole: to begin with initial weights would
  // pass for resuming.
  virtual absl::Status CheckResumable() { return absl::OkStatus(); }
};

// Creates the directory if need be, and clears half-written leftovers of a former process.
// FAILED_PRECONDITION while another store has the shard's directory open: a second server of the same rank
// must not touch what the first one writes.
// Checkpoints that only `mirror_dir` has, laid out like a checkpoint_dir, are offered too; opening one of
// this number of shards first copies it back.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointStore(
    const std::filesystem::path& directory, int rank, int num_shards,
    const std::filesystem::path& mirror_dir = {});

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_CHECKPOINT_STORE_H_
