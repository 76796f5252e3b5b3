// A checkpoint store in memory, whose disk can be full.
#ifndef CCS_TESTS_TESTING_MEMORY_CHECKPOINT_STORE_H_
#define CCS_TESTS_TESTING_MEMORY_CHECKPOINT_STORE_H_

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
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

  absl::StatusOr<std::vector<StoredCheckpoint>> List() override {
    std::lock_guard lock(mutex_);
    std::vector<StoredCheckpoint> list;
    for (const auto& [id, contents] : stored_) list.push_back({contents.header, 1});
    return list;
  }
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const CheckpointHeader& header) override {
    return std::make_unique<Writer>(this, header);
  }
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId& id) override {
    std::lock_guard lock(mutex_);
    if (!stored_.contains(id)) return absl::NotFoundError(id.ToString());
    return std::make_unique<Reader>(stored_.at(id));
  }
  absl::Status Prune(const CheckpointId& newest, int keep) override {
    std::lock_guard lock(mutex_);
    const auto end = stored_.upper_bound(newest);
    for (int64_t surplus = std::distance(stored_.begin(), end) - keep; surplus > 0; --surplus) {
      stored_.erase(stored_.begin());
    }
    return absl::OkStatus();
  }

 private:
  class Writer : public CheckpointWriter {
   public:
    Writer(MemoryCheckpointStore* store, const CheckpointHeader& header) : store_(store) {
      contents_.header = header;
    }
    absl::Status AddRows(int64_t first_class, int64_t num_rows, const float* weight,
                         const float* momentum) override {
      const int dim = contents_.header.dim;
      const auto have = static_cast<int64_t>(contents_.weight.size()) / dim;
      if (first_class != contents_.header.class_start + have) return absl::InternalError("a gap in the rows");
      if (store_->disk_full_) return absl::ResourceExhaustedError("the disk is full");
      contents_.weight.insert(contents_.weight.end(), weight, weight + num_rows * dim);
      contents_.momentum.insert(contents_.momentum.end(), momentum, momentum + num_rows * dim);
      return absl::OkStatus();
    }
    absl::Status AddRecord(const std::string& name, const std::string& value) override {
      contents_.records.emplace_back(name, value);
      return absl::OkStatus();
    }
    absl::StatusOr<int64_t> Commit() override {
      const auto bytes = static_cast<int64_t>(2 * contents_.weight.size() * sizeof(float));
      std::lock_guard lock(store_->mutex_);
      store_->stored_[contents_.header.id] = std::move(contents_);
      return bytes;
    }

   private:
    MemoryCheckpointStore* const store_;
    Contents contents_;
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
  bool disk_full_ = false;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_MEMORY_CHECKPOINT_STORE_H_
