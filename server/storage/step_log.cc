#include "server/storage/step_log.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rocksdb/convenience.h"
#include "server/storage/files.h"
#include "server/storage/status_util.h"
#include "server/storage/step_log_database.h"
#include "server/storage/step_log_entry.h"
#include "spdlog/spdlog.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

fs::path LogFolder(const fs::path& checkpoint_dir, int rank, int num_shards) {
  return checkpoint_dir / absl::StrCat("shard-", rank, "-of-", num_shards) / "log";
}

struct Lineage {
  struct Record {
    int64_t step = 0;
    uint64_t payload = 0;
  };
  LogBeginEntry begin;
  std::deque<Record> records;  // from begin.first on
  bool damaged = false;        // more records follow, of which the first cannot be read

  int64_t last() const { return begin.first + static_cast<int64_t>(records.size()) - 1; }
  void EndAt(int64_t last) { records.resize(last - begin.first + 1); }
};

class RocksStepLog : public StepLog {
 public:
  RocksStepLog(fs::path folder, rocksdb::Env* env) : folder_(std::move(folder)), env_(env) {}

  // Called once, before everything else.
  absl::Status Open();

  absl::StatusOr<std::vector<LoggedLineage>> List() override;
  absl::Status Begin(uint64_t lineage, int64_t step, const std::string& begin) override;
  absl::Status Append(uint64_t lineage, int64_t index, const LogRecord& record) override;
  absl::StatusOr<LogRecord> Read(uint64_t lineage, int64_t index) override;
  absl::Status Truncate(uint64_t lineage, int64_t last) override;
  absl::Status Cut(uint64_t lineage, int64_t index) override;

 private:
  // Walks the index.
  absl::Status Load();
  absl::StatusOr<Lineage*> Find(uint64_t lineage);
  // DATA_LOSS if the record is damaged.
  absl::StatusOr<LogRecord> ReadVerified(uint64_t lineage, int64_t index) const;
  absl::Status DropPayloads();
  absl::Status Write(LogWrite& write) { return Written(write.Commit(database_)); }
  // Remembers the first failure.
  absl::Status Written(const rocksdb::Status& status);

  rocksdb::ColumnFamilyHandle* index() const { return database_.index.get(); }
  rocksdb::ColumnFamilyHandle* payloads() const { return database_.payloads.get(); }
  absl::Status DataLoss(const std::string& what) const {
    return absl::DataLossError(absl::StrCat("step log ", folder_.string(), ": ", what));
  }
  absl::Status OutOfOrder(uint64_t lineage, const std::string& what) const {
    return absl::FailedPreconditionError(
        absl::StrCat("step log ", folder_.string(), ", lineage ", lineage, ": ", what));
  }

  const fs::path folder_;
  rocksdb::Env* const env_;
  LogDatabase database_;  // closed if it could not be opened anew after `failure_`
  std::mutex mutex_;      // guards what follows, and keeps Read from what Cut and Truncate remove
  std::map<uint64_t, Lineage> lineages_;
  absl::Status failure_;  // of the first write that failed
};

absl::Status RocksStepLog::Open() {
  absl::StatusOr<LogDatabase> database = OpenLogDatabase(folder_, env_);
  if (!database.ok()) return database.status();
  database_ = *std::move(database);
  return Load();
}

absl::Status RocksStepLog::Load() {
  uint64_t current = 0;  // lineage
  int64_t next = 0;      // its next record
  const std::unique_ptr<rocksdb::Iterator> it(database_.db->NewIterator(rocksdb::ReadOptions(), index()));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const std::string_view text = it->key().ToStringView();
    const std::optional<LogKey> key = ParseLogKey(text);
    if (!key.has_value()) continue;
    if (key->index == 0) {  // begins come before all records
      std::optional<LogBeginEntry> begin = DecodeLogBegin(text, it->value().ToStringView());
      if (!begin.has_value()) return DataLoss(absl::StrCat("lineage ", key->lineage, " has a damaged begin"));
      lineages_[key->lineage].begin = *std::move(begin);
      continue;
    }
    const auto found = lineages_.find(key->lineage);
    if (found == lineages_.end()) return DataLoss(absl::StrCat("lineage ", key->lineage, " has no begin"));
    Lineage& lineage = found->second;
    if (next == 0 || current != key->lineage) next = lineage.begin.first;
    current = key->lineage;
    const std::optional<LogRecordEntry> record = DecodeLogRecord(text, it->value().ToStringView());
    if (!lineage.damaged && (key->index != next || !record.has_value())) {
      lineage.damaged = true;
      spdlog::error("step log {}: lineage {} ends before record {}, which is {}", folder_.string(), current,
                    next, key->index != next ? "missing" : "damaged");
    }
    if (!lineage.damaged) lineage.records.push_back({record->step, record->payload});
    ++next;
  }
  return RocksToStatus(it->status(), folder_);
}

absl::StatusOr<Lineage*> RocksStepLog::Find(uint64_t lineage) {
  const auto found = lineages_.find(lineage);
  if (found != lineages_.end()) return &found->second;
  return absl::NotFoundError(absl::StrCat("lineage ", lineage, " is not in step log ", folder_.string()));
}

absl::StatusOr<std::vector<LoggedLineage>> RocksStepLog::List() {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) {
    spdlog::warn("step log {}: is opened anew after: {}", folder_.string(), failure_.ToString());
    lineages_.clear();
    database_.Close();
    if (absl::Status status = Open(); !status.ok()) return status;
    failure_ = absl::OkStatus();
  }
  std::vector<LoggedLineage> list;
  for (const auto& [number, lineage] : lineages_) {
    list.push_back({.lineage = number,
                    .begin = lineage.begin.begin,
                    .begin_step = lineage.begin.step,
                    .first = lineage.begin.first,
                    .last = lineage.last(),
                    .last_step = lineage.records.empty() ? lineage.begin.step : lineage.records.back().step});
  }
  return list;
}

absl::Status RocksStepLog::Begin(uint64_t lineage, int64_t step, const std::string& begin) {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  const auto found = lineages_.find(lineage);
  if (found != lineages_.end() && (found->second.last() > 0 || found->second.damaged)) {
    return OutOfOrder(lineage, absl::StrCat("cannot begin again, it has had records up to ",
                                            found->second.last(), found->second.damaged ? " and more" : ""));
  }
  const LogBeginEntry entry = {.step = step, .begin = begin};
  LogWrite write;
  write.Put(index(), LogBeginKey(lineage), EncodeLogEntry(LogBeginKey(lineage), entry));
  absl::Status status = Write(write);
  if (status.ok()) lineages_[lineage].begin = entry;
  return status;
}

absl::Status RocksStepLog::Append(uint64_t lineage, int64_t index, const LogRecord& record) {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  const absl::StatusOr<Lineage*> found = Find(lineage);
  if (!found.ok()) return found.status();
  if (index != (*found)->last() + 1 || (*found)->damaged) {
    return OutOfOrder(lineage,
                      absl::StrCat("record ", index, " cannot follow ",
                                   (*found)->damaged ? "a damaged one after " : "", (*found)->last()));
  }
  const std::string key = LogRecordKey(lineage, index);
  const LogRecordEntry entry = {.step = record.step,
                                .payload = database_.written + 1,
                                .bytes = static_cast<int64_t>(record.payload.size()),
                                .digest = DigestOf(record.payload)};
  LogWrite write;
  write.Put(this->index(), key, EncodeLogEntry(key, entry));
  write.Put(payloads(), LogPayloadKey(entry.payload), record.payload);
  absl::Status status = Write(write);
  if (status.ok()) (*found)->records.push_back({entry.step, entry.payload});
  return status;
}

absl::StatusOr<LogRecord> RocksStepLog::Read(uint64_t lineage, int64_t index) {
  std::lock_guard lock(mutex_);
  const absl::StatusOr<Lineage*> found = Find(lineage);
  if (!found.ok()) return found.status();
  Lineage& state = **found;
  if (index > state.last() && state.damaged) {
    return DataLoss(absl::StrCat("lineage ", lineage, " ends after record ", state.last(), " by damage"));
  }
  if (index < state.begin.first || index > state.last()) {
    return absl::NotFoundError(absl::StrCat("record ", index, " of lineage ", lineage, " is not in step log ",
                                            folder_.string(), ", which has ", state.begin.first, " to ",
                                            state.last()));
  }
  absl::StatusOr<LogRecord> record = ReadVerified(lineage, index);
  if (absl::IsDataLoss(record.status())) {
    spdlog::error("lineage {} ends before record {}: {}", lineage, index, record.status().ToString());
    state.damaged = true;
    state.EndAt(index - 1);
  }
  return record;
}

absl::StatusOr<LogRecord> RocksStepLog::ReadVerified(uint64_t lineage, int64_t index) const {
  const std::string key = LogRecordKey(lineage, index);
  const auto damaged = [&](const std::string& what) {
    return DataLoss(absl::StrCat("record ", index, " of lineage ", lineage, ": ", what));
  };
  const auto get = [&](rocksdb::ColumnFamilyHandle* family, const std::string& from, std::string* value) {
    const rocksdb::Status status = database_.db->Get(rocksdb::ReadOptions(), family, from, value);
    if (status.IsNotFound() || status.IsCorruption() || status.IsPathNotFound()) {
      return damaged(status.ToString());
    }
    return RocksToStatus(status, folder_);
  };
  std::string value;
  if (absl::Status status = get(this->index(), key, &value); !status.ok()) return status;
  const std::optional<LogRecordEntry> entry = DecodeLogRecord(key, value);
  if (!entry.has_value()) return damaged("its entry does not have its digest");
  LogRecord record = {.step = entry->step, .payload = {}};
  if (absl::Status status = get(payloads(), LogPayloadKey(entry->payload), &record.payload); !status.ok())
    return status;
  if (static_cast<int64_t>(record.payload.size()) != entry->bytes ||
      DigestOf(record.payload) != entry->digest) {
    return damaged("its payload does not have its size and digest");
  }
  return record;
}

absl::Status RocksStepLog::Truncate(uint64_t lineage, int64_t last) {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  const absl::StatusOr<Lineage*> found = Find(lineage);
  if (!found.ok()) return found.status();
  Lineage& state = **found;
  if (last < state.begin.first - 1 || last > state.last()) {
    return OutOfOrder(lineage, absl::StrCat("cannot be truncated to record ", last, ", it has ",
                                            state.begin.first, " to ", state.last()));
  }
  LogWrite write;  // payloads are nothing without their entries
  write.DeleteRange(index(), LogRecordKey(lineage, last + 1), LogRecordKey(lineage, kMaxLogIndex));
  absl::Status status = Write(write);
  if (status.ok()) {
    state.EndAt(last);
    state.damaged = false;
  }
  return status;
}

absl::Status RocksStepLog::Cut(uint64_t lineage, int64_t index) {
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  const absl::StatusOr<Lineage*> found = Find(lineage);
  if (!found.ok()) return found.status();
  Lineage& state = **found;
  if (index < state.begin.first) index = state.begin.first - 1;  // gone already; earlier lineages may not be
  if (index > state.last()) {
    return OutOfOrder(lineage, absl::StrCat("cannot be cut at record ", index, ", it has ", state.begin.first,
                                            " to ", state.last()));
  }
  LogBeginEntry begin = state.begin;
  begin.first = index + 1;
  LogWrite write;
  write.DeleteRange(this->index(), LogBeginKey(0), LogBeginKey(lineage));
  write.DeleteRange(this->index(), LogRecordKey(0, 0), LogRecordKey(lineage, begin.first));
  write.Put(this->index(), LogBeginKey(lineage), EncodeLogEntry(LogBeginKey(lineage), begin));
  if (absl::Status status = Write(write); !status.ok()) return status;
  state.records.erase(state.records.begin(), state.records.begin() + (begin.first - state.begin.first));
  state.begin = begin;
  lineages_.erase(lineages_.begin(), lineages_.find(lineage));
  return DropPayloads();
}

// Files that hold needed payloads too, and what has not been flushed, go at a later time.
absl::Status RocksStepLog::DropPayloads() {
  uint64_t needed = database_.written + 1;
  for (const auto& [number, lineage] : lineages_) {
    if (!lineage.records.empty()) needed = std::min(needed, lineage.records.front().payload);
  }
  const std::string end = LogPayloadKey(needed);
  const rocksdb::Slice limit(end);
  return Written(rocksdb::DeleteFilesInRange(database_.db.get(), payloads(), nullptr, &limit,
                                             /*include_end=*/false));
}

absl::Status RocksStepLog::Written(const rocksdb::Status& status) {
  if (!status.ok()) failure_ = RocksToStatus(status, folder_);
  return failure_;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepLog>> OpenStepLogIn(const fs::path& folder, rocksdb::Env* env) {
  auto log = std::make_unique<RocksStepLog>(folder, env);
  if (absl::Status status = log->Open(); !status.ok()) return status;
  return log;
}

absl::StatusOr<std::unique_ptr<StepLog>> OpenStepLog(const fs::path& checkpoint_dir, int rank,
                                                     int num_shards) {
  return OpenStepLogIn(LogFolder(checkpoint_dir, rank, num_shards), rocksdb::Env::Default());
}

absl::StatusOr<fs::path> SetStepLogAside(const fs::path& checkpoint_dir, int rank, int num_shards) {
  const fs::path folder = LogFolder(checkpoint_dir, rank, num_shards);
  std::error_code error;
  for (int n = 1;; ++n) {
    const fs::path aside = absl::StrCat(folder.string(), ".damaged-", n);
    if (!error && fs::exists(aside, error)) continue;
    if (!error) fs::rename(folder, aside, error);
    if (error) return ErrnoToStatus(error.value(), "set aside", folder);
    if (absl::Status status = Sync(folder.parent_path()); !status.ok()) return status;
    return aside;
  }
}

}  // namespace ccs
