// A checkpoint store in memory, whose disk can be full.
#ifndef CCS_TESTS_TESTING_MEMORY_CHECKPOINT_STORE_H_
#define CCS_TESTS_TESTING_MEMORY_CHECKPOINT_STORE_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/storage/checkpoint_store.h"

namespace ccs::testing {

// Outlives the shards whose disk it is. Thread-safe, but for the accessors, which are for when no engine
// works.
class MemoryCheckpointStore : public CheckpointStore {
 public:
  struct Contents {
    CheckpointHeader header;
    std::vector<float> weight;
    std::vector<float> momentum;
    std::vector<std::pair<std::string, std::string>> records;
  };

  std::map<CheckpointId, Contents>& stored() { return stored_; }
  void set_disk_full(bool full) { disk_full_ = full; }
  // Called before rows are written, on the thread that writes. Set it while none is.
  void set_before_rows(std::function<void()> hook) { before_rows_ = std::move(hook); }
  // By all checkpoints so far.
  int64_t rows_written() const { return rows_written_; }

  absl::StatusOr<std::vector<StoredCheckpoint>> List() override {
    std::lock_guard lock(mutex_);
    std::vector<StoredCheckpoint> list;
    for (const auto& [id, contents] : stored_) list.push_back({contents.header, 1});
    return list;
  }
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const CheckpointHeader& header,
                                                           const std::optional<CheckpointId>& base) override {
    std::lock_guard lock(mutex_);
    Contents contents;
    if (base) {
      if (!stored_.contains(*base)) return absl::NotFoundError(base->ToString());
      contents = stored_.at(*base);
      contents.records.clear();
    }
    contents.header = header;
    contents.weight.resize(header.num_local * header.dim);
    contents.momentum.resize(header.num_local * header.dim);
    return std::make_unique<Writer>(this, std::move(contents), base.has_value());
  }
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId& id) override {
    std::lock_guard lock(mutex_);
    if (!stored_.contains(id)) return absl::NotFoundError(id.ToString());
    return std::make_unique<Reader>(stored_.at(id));
  }
  absl::StatusOr<std::vector<StoredCheckpoint>> Prune(const CheckpointId& newest, int keep) override {
    std::lock_guard lock(mutex_);
    std::vector<StoredCheckpoint> left;
    for (auto next = stored_.upper_bound(newest); next != stored_.begin();) {
      const auto it = std::prev(next);
      if (static_cast<int>(left.size()) < keep) left.push_back({it->second.header, 1});
      const bool stays = left.back().header.id == it->first || it->second.header.kept;
      next = stays ? it : stored_.erase(it);
    }
    return left;
  }
  absl::Status Release(const CheckpointId& id) override {
    std::lock_guard lock(mutex_);
    if (!stored_.contains(id)) return absl::NotFoundError(id.ToString());
    stored_.at(id).header.kept = false;
    return absl::OkStatus();
  }

 private:
  class Writer : public CheckpointWriter {
   public:
    Writer(MemoryCheckpointStore* store, Contents contents, bool has_base)
        : store_(store),
          contents_(std::move(contents)),
          missing_(has_base ? 0 : contents_.header.num_local) {}
    absl::Status AddRows(int64_t first_class, int64_t num_rows, const float* weight,
                         const float* momentum) override {
      const int64_t dim = contents_.header.dim;
      const int64_t first = (first_class - contents_.header.class_start) * dim;
      if (store_->before_rows_) store_->before_rows_();
      if (store_->disk_full_) return absl::ResourceExhaustedError("the disk is full");
      store_->rows_written_ += num_rows;
      missing_ -= num_rows;
      std::copy_n(weight, num_rows * dim, contents_.weight.begin() + first);
      std::copy_n(momentum, num_rows * dim, contents_.momentum.begin() + first);
      return absl::OkStatus();
    }
    absl::Status AddRecord(const std::string& name, const std::string& value) override {
      contents_.records.emplace_back(name, value);
      return absl::OkStatus();
    }
    absl::StatusOr<CheckpointSize> Commit() override {
      if (missing_ > 0) return absl::FailedPreconditionError("rows are missing");
      const auto bytes = static_cast<int64_t>(2 * contents_.weight.size() * sizeof(float));
      std::lock_guard lock(store_->mutex_);
      store_->stored_[contents_.header.id] = std::move(contents_);
      return CheckpointSize{bytes, bytes};
    }

   private:
    MemoryCheckpointStore* const store_;
    Contents contents_;
    int64_t missing_;
  };

  class Reader : public CheckpointReader {
   public:
    explicit Reader(Contents contents) : contents_(std::move(contents)) {}
    const CheckpointHeader& header() const override { return contents_.header; }
    absl::Status ReadRows(int64_t first_class, int64_t num_rows, float* weight, float* momentum) override {
      const int64_t dim = contents_.header.dim;
      const int64_t first = (first_class - contents_.header.class_start) * dim;
      std::copy_n(contents_.weight.begin() + first, num_rows * dim, weight);
      std::copy_n(contents_.momentum.begin() + first, num_rows * dim, momentum);
      return absl::OkStatus();
    }
    absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadRecords() override {
      return contents_.records;
    }

   private:
    const Contents contents_;
  };

  std::mutex mutex_;
  std::map<CheckpointId, Contents> stored_;
  std::atomic<bool> disk_full_ = false;
  std::atomic<int64_t> rows_written_ = 0;
  std::function<void()> before_rows_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_MEMORY_CHECKPOINT_STORE_H_
