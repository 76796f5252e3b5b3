// The step log's RocksDB: how it is made, opened and kept small. FORMAT.md describes what is in it.
#ifndef CCS_SERVER_STORAGE_STEP_LOG_DATABASE_H_
#define CCS_SERVER_STORAGE_STEP_LOG_DATABASE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rocksdb/db.h"
#include "rocksdb/write_batch.h"
#include "server/storage/step_log.h"

namespace ccs {

// Payloads have a column family of their own: the index is small, walked at opening, and changed; payloads
// are only added, under ascending keys, and dropped by whole files.
struct LogDatabase {
  std::unique_ptr<rocksdb::DB> db;
  // Of `db`, so gone before it.
  std::unique_ptr<rocksdb::ColumnFamilyHandle> index;
  std::unique_ptr<rocksdb::ColumnFamilyHandle> payloads;
  uint64_t written = 0;  // number of the last write

  void Close() {
    payloads.reset();
    index.reset();
    db.reset();
  }
};

// One synced write of several changes, all of them or none. Writes are numbered from 1; each leaves its
// number and is counted, so that one that is missing shows.
class LogWrite {
 public:
  using Family = rocksdb::ColumnFamilyHandle*;
  void Put(Family family, const std::string& key, const std::string& value) {
    Add(batch_.Put(family, key, value));
  }
  void Merge(Family family, const std::string& key, const std::string& value) {
    Add(batch_.Merge(family, key, value));
  }
  // [begin, end)
  void DeleteRange(Family family, const std::string& begin, const std::string& end) {
    Add(batch_.DeleteRange(family, begin, end));
  }
  // Fails if any change could not be added.
  rocksdb::Status Commit(LogDatabase& database);

 private:
  void Add(const rocksdb::Status& added) {
    if (status_.ok()) status_ = added;
  }
  rocksdb::WriteBatch batch_;
  rocksdb::Status status_;
};

// Makes it if there is none. DATA_LOSS for damage, found before anything is changed; FAILED_PRECONDITION for
// an unknown format version. `env` must outlive the database.
absl::StatusOr<LogDatabase> OpenLogDatabase(const std::filesystem::path& folder, rocksdb::Env* env);

// OpenStepLog for a folder of its own. `env` must outlive the log.
absl::StatusOr<std::unique_ptr<StepLog>> OpenStepLogIn(const std::filesystem::path& folder,
                                                       rocksdb::Env* env);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_STEP_LOG_DATABASE_H_
