// A step log in memory, whose disk can fail.
#ifndef CCS_TESTS_TESTING_MEMORY_STEP_LOG_H_
#define CCS_TESTS_TESTING_MEMORY_STEP_LOG_H_

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/storage/step_log.h"

namespace ccs::testing {

// Outlives the shards whose disk it is. Thread-safe.
class MemoryStepLog : public StepLog {
 public:
  // Appends fail from now on.
  void set_disk_full(bool full) {
    std::lock_guard lock(mutex_);
    disk_full_ = full;
  }
  // Damage: the record cannot be read.
  void Damage(uint64_t lineage, int64_t index) {
    std::lock_guard lock(mutex_);
    damaged_[lineage] = index;
  }

  absl::StatusOr<std::vector<LoggedLineage>> List() override {
    std::lock_guard lock(mutex_);
    std::vector<LoggedLineage> list;
    for (const auto& [number, held] : lineages_) {
      LoggedLineage lineage{number, held.begin, held.begin_step, held.first, held.last(), held.begin_step};
      if (damaged_.contains(number) && damaged_.at(number) <= lineage.last) {
        lineage.last = damaged_.at(number) - 1;
      }
      if (lineage.last >= lineage.first) lineage.last_step = held.records.at(lineage.last).step;
      list.push_back(lineage);
    }
    return list;
  }
  absl::Status Begin(uint64_t lineage, int64_t step, const std::string& begin) override {
    std::lock_guard lock(mutex_);
    if (disk_full_) return absl::ResourceExhaustedError("the log's disk is full");
    if (lineages_.contains(lineage) && !lineages_[lineage].records.empty()) {
      return absl::FailedPreconditionError("the lineage has records");
    }
    lineages_[lineage] = {begin, step, 1, {}};
    return absl::OkStatus();
  }
  absl::Status Append(uint64_t lineage, int64_t index, const LogRecord& record) override {
    std::lock_guard lock(mutex_);
    if (disk_full_) return absl::ResourceExhaustedError("the log's disk is full");
    const auto held = lineages_.find(lineage);
    if (held == lineages_.end() || index != held->second.last() + 1) {
      return absl::FailedPreconditionError("not the next record");
    }
    held->second.records[index] = record;
    return absl::OkStatus();
  }
  absl::StatusOr<LogRecord> Read(uint64_t lineage, int64_t index) override {
    std::lock_guard lock(mutex_);
    if (damaged_.contains(lineage) && damaged_.at(lineage) == index) return absl::DataLossError("damaged");
    const auto held = lineages_.find(lineage);
    if (held == lineages_.end() || !held->second.records.contains(index))
      return absl::NotFoundError("no record");
    return held->second.records.at(index);
  }
  absl::Status Truncate(uint64_t lineage, int64_t last) override {
    std::lock_guard lock(mutex_);
    if (!lineages_.contains(lineage)) return absl::NotFoundError("no such lineage");
    auto& records = lineages_[lineage].records;
    records.erase(records.upper_bound(last), records.end());
    return absl::OkStatus();
  }
  absl::Status Cut(uint64_t lineage, int64_t index) override {
    std::lock_guard lock(mutex_);
    if (!lineages_.contains(lineage)) return absl::NotFoundError("no such lineage");
    lineages_.erase(lineages_.begin(), lineages_.lower_bound(lineage));
    Lineage& held = lineages_[lineage];
    held.records.erase(held.records.begin(), held.records.upper_bound(index));
    held.first = std::max(held.first, index + 1);
    return absl::OkStatus();
  }

 private:
  struct Lineage {
    std::string begin;
    int64_t begin_step = 0;
    int64_t first = 1;
    std::map<int64_t, LogRecord> records;
    int64_t last() const { return records.empty() ? first - 1 : records.rbegin()->first; }
  };

  std::mutex mutex_;
  bool disk_full_ = false;
  std::map<uint64_t, Lineage> lineages_;
  std::map<uint64_t, int64_t> damaged_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_MEMORY_STEP_LOG_H_
