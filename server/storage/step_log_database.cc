#include "server/storage/step_log_database.h"

#include <string.h>

#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rocksdb/merge_operator.h"
#include "rocksdb/table.h"
#include "server/fault_point.h"
#include "server/storage/checkpoint_files.h"
#include "server/storage/files.h"
#include "server/storage/row_block.h"
#include "server/storage/status_util.h"
#include "server/storage/step_log_entry.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLogFormatVersion = 1;

// Adds up, so that a write that got lost on the way to the database is missing from the sum.
class Counter : public rocksdb::AssociativeMergeOperator {
 public:
  bool Merge(const rocksdb::Slice& /*key*/, const rocksdb::Slice* existing, const rocksdb::Slice& value,
             std::string* sum, rocksdb::Logger* /*logger*/) const override {
    const size_t bytes = sizeof(uint64_t);
    if (value.size() != bytes || (existing != nullptr && existing->size() != bytes)) return false;
    const uint64_t before = existing == nullptr ? 0 : ReadLogInteger(existing->ToStringView());
    *sum = LogInteger(before + ReadLogInteger(value.ToStringView()));
    return true;
  }
  const char* Name() const override { return "ccs.Counter"; }
};

rocksdb::DBOptions LogOptions(rocksdb::Env* env) {
  rocksdb::DBOptions options;
  options.env = env;
  options.info_log = NoInfoLog();
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.atomic_flush = true;  // a write-ahead log file goes when what is in it is on disk in both families
  options.track_and_verify_wals_in_manifest = true;
  options.max_open_files = 64;
  options.max_manifest_file_size = uint64_t{1} << 20;
  options.bytes_per_sync = uint64_t{1} << 20;  // else a flush makes a synced write wait for all of its pages
  options.max_bgerror_resume_count = 0;        // after a failure nothing is certain until it is opened again
  return options;
}

rocksdb::ColumnFamilyOptions IndexOptions() {
  rocksdb::ColumnFamilyOptions options;
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = size_t{4} << 20;
  options.merge_operator = std::make_shared<Counter>();
  return options;
}

// Keys only ascend, so files do not overlap: each one moves from level 0 to the last level by name alone, at
// once, and can be dropped there. A payload is written twice, to the write-ahead log and to its file, and
// never read for a compaction, which a damaged one would stop.
rocksdb::ColumnFamilyOptions PayloadOptions() {
  rocksdb::ColumnFamilyOptions options;
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = size_t{16} << 20;
  options.max_write_buffer_number = 2;
  options.num_levels = 2;
  options.level0_file_num_compaction_trigger = 1;
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

enum class Mode { kReadOnly, kReadWrite };

rocksdb::Status OpenFamilies(const rocksdb::DBOptions& options, const fs::path& folder, Mode mode,
                             LogDatabase& opened) {
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, IndexOptions()}, {"payloads", PayloadOptions()}};
  rocksdb::DB* db = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::Status status =
      mode == Mode::kReadOnly
          ? rocksdb::DB::OpenForReadOnly(options, folder.string(), families, &handles, &db)
          : rocksdb::DB::Open(options, folder.string(), families, &handles, &db);
  if (!status.ok()) return status;
  opened.db.reset(db);
  opened.index.reset(handles[0]);
  opened.payloads.reset(handles[1]);
  return status;
}

// Under another name first, so that a log is there whole or not at all: RocksDB alone would take one that
// lost its file CURRENT for a new one.
absl::Status Create(const fs::path& folder, rocksdb::Env* env) {
  const fs::path temporary = absl::StrCat(folder.string(), kLeftoverMark, "new");
  std::error_code error;
  fs::remove_all(temporary, error);
  if (!error) fs::create_directories(temporary, error);
  if (error) return ErrnoToStatus(error.value(), "create", temporary);
  {
    LogDatabase database;
    rocksdb::DBOptions options = LogOptions(env);
    options.create_if_missing = true;
    options.create_missing_column_families = true;
    rocksdb::Status status = OpenFamilies(options, temporary, Mode::kReadWrite, database);
    LogWrite first;
    first.Put(database.index.get(), kLogVersionKey, EncodeLogNumber(kLogVersionKey, kLogFormatVersion));
    if (status.ok()) status = first.Commit(database);
    if (!status.ok()) return RocksToStatus(status, temporary);
  }
  if (absl::Status status = Sync(temporary); !status.ok()) return status;
  fs::rename(temporary, folder, error);
  if (error) return ErrnoToStatus(error.value(), "create", folder);
  return Sync(folder.parent_path());
}

// Damage shows in more ways than by its name: a file that is not there, a column family that has another.
absl::Status OpenFailure(const rocksdb::Status& status, const fs::path& folder) {
  if (status.IsPathNotFound() || status.IsInvalidArgument() || status.IsNotFound() ||
      status.IsNotSupported()) {
    return absl::DataLossError(RocksToStatus(status, folder).message());
  }
  return RocksToStatus(status, folder);
}

absl::Status DataLoss(const fs::path& folder, const std::string& what) {
  return absl::DataLossError(absl::StrCat("step log ", folder.string(), ": ", what));
}

absl::StatusOr<std::string> GetValue(const LogDatabase& database, const char* key, const fs::path& folder) {
  std::string value;
  const rocksdb::Status status = database.db->Get(rocksdb::ReadOptions(), database.index.get(), key, &value);
  if (!status.ok()) return OpenFailure(status, folder);
  return value;
}

absl::StatusOr<uint64_t> GetNumber(const LogDatabase& database, const char* key, const fs::path& folder) {
  const absl::StatusOr<std::string> value = GetValue(database, key, folder);
  if (!value.ok()) return value.status();
  const std::optional<uint64_t> number = DecodeLogNumber(key, *value);
  if (!number.has_value()) return DataLoss(folder, absl::StrCat("the value of '", key, "' is damaged"));
  return *number;
}

// What the write-ahead log files hold.
absl::StatusOr<std::vector<std::string>> ReadWriteAheadLog(const fs::path& folder) {
  std::vector<std::string> texts;
  const absl::StatusOr<std::vector<fs::path>> files = ListDirectory(folder);
  if (!files.ok()) return files.status();
  for (const fs::path& file : *files) {
    if (file.extension() != ".log") continue;
    absl::StatusOr<std::string> text = ReadFile(file);
    if (!text.ok()) return text.status();
    texts.push_back(*std::move(text));
  }
  return texts;
}

// RocksDB takes the write-ahead log up to the first damage. The one write after `last` may have been
// interrupted, when nobody had been told of it; if there are traces of another behind it, it was promised.
absl::Status CheckLastWrite(uint64_t last, const fs::path& folder) {
  constexpr uint64_t kTraces = 8;  // should the first ones be damaged too
  const absl::StatusOr<std::vector<std::string>> texts = ReadWriteAheadLog(folder);
  if (!texts.ok()) return texts.status();
  for (uint64_t later = last + 2; later < last + 2 + kTraces; ++later) {
    const std::string trace = EncodeLogNumber(kLogWrittenKey, later);
    for (const std::string& text : *texts) {
      if (memmem(text.data(), text.size(), trace.data(), trace.size()) == nullptr) continue;
      return DataLoss(folder,
                      absl::StrCat("write ", last + 1, " is damaged, and write ", later, " followed"));
    }
  }
  return absl::OkStatus();
}

// Changes nothing, so that what is refused stays so, and as it was.
absl::StatusOr<uint64_t> Examine(const fs::path& folder, const rocksdb::DBOptions& options) {
  LogDatabase database;
  const rocksdb::Status status = OpenFamilies(options, folder, Mode::kReadOnly, database);
  if (!status.ok()) return OpenFailure(status, folder);
  const absl::StatusOr<uint64_t> version = GetNumber(database, kLogVersionKey, folder);
  if (!version.ok()) return version.status();
  if (*version != kLogFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(folder.string(), " has format version ", *version,
                                                      "; this program knows ", kLogFormatVersion));
  }
  const absl::StatusOr<uint64_t> written = GetNumber(database, kLogWrittenKey, folder);
  if (!written.ok()) return written.status();
  const absl::StatusOr<std::string> applied = GetValue(database, kLogAppliedKey, folder);
  if (!applied.ok()) return applied.status();
  if (*applied != LogInteger(*written)) {
    return DataLoss(folder, absl::StrCat("some of its ", *written, " writes are missing"));
  }
  if (absl::Status last = CheckLastWrite(*written, folder); !last.ok()) return last;
  return *written;
}

}  // namespace

rocksdb::Status LogWrite::Commit(LogDatabase& database) {
  const uint64_t number = database.written + 1;
  Put(database.index.get(), kLogWrittenKey, EncodeLogNumber(kLogWrittenKey, number));
  Merge(database.index.get(), kLogAppliedKey, LogInteger(1));
  if (!status_.ok()) return status_;
  rocksdb::WriteOptions options;
  options.sync = true;
  ReachFaultPoint("log/before_sync");
  status_ = database.db->Write(options, &batch_);
  ReachFaultPoint("log/after_sync");
  if (status_.ok()) database.written = number;
  return status_;
}

absl::StatusOr<LogDatabase> OpenLogDatabase(const fs::path& folder, rocksdb::Env* env) {
  std::error_code error;
  const bool exists = fs::exists(folder, error);
  if (error) return ErrnoToStatus(error.value(), "look for", folder);
  if (!exists) {
    if (absl::Status status = Create(folder, env); !status.ok()) return status;
  }
  const rocksdb::DBOptions options = LogOptions(env);
  const absl::StatusOr<uint64_t> written = Examine(folder, options);
  if (!written.ok()) return written.status();
  LogDatabase database;
  const rocksdb::Status status = OpenFamilies(options, folder, Mode::kReadWrite, database);
  if (!status.ok()) return OpenFailure(status, folder);
  database.written = *written;
  return database;
}

}  // namespace ccs
