// A checkpoint store in memory, whose disk can be full.
#ifndef CCS_TESTS_SERVER_ENGINE_MEMORY_CHECKPOINT_STORE_H_
#define CCS_TESTS_SERVER_ENGINE_MEMORY_CHECKPOINT_STORE_H_

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/storage/checkpoint_store.h"

namespace ccs::testing {

// Used by one thread at a time.
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
  const std::pair<CheckpointId, int>& pruned() const { return pruned_; }

  absl::StatusOr<std::vector<StoredCheckpoint>> List() override {
    std::vector<StoredCheckpoint> list;
    for (const auto& [id, contents] : stored_) list.push_back({contents.header, 1});
    return list;
  }
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const CheckpointHeader& header) override {
    return std::make_unique<Writer>(this, header);
  }
  absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const CheckpointId& id) override {
    if (!stored_.contains(id)) return absl::NotFoundError(id.ToString());
    return std::make_unique<Reader>(&stored_.at(id));
  }
  absl::Status Prune(const CheckpointId& newest, int keep) override {
    pruned_ = {newest, keep};
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
      store_->stored_[contents_.header.id] = std::move(contents_);
      return bytes;
    }

   private:
    MemoryCheckpointStore* const store_;
    Contents contents_;
  };

  class Reader : public CheckpointReader {
   public:
    explicit Reader(const Contents* contents) : contents_(contents) {}
    const CheckpointHeader& header() const override { return contents_->header; }
    absl::Status ReadRows(int64_t first_class, int64_t num_rows, float* weight, float* momentum) override {
      const int64_t dim = contents_->header.dim;
      const int64_t first = (first_class - contents_->header.class_start) * dim;
      std::copy_n(contents_->weight.begin() + first, num_rows * dim, weight);
      std::copy_n(contents_->momentum.begin() + first, num_rows * dim, momentum);
      return absl::OkStatus();
    }
    absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadRecords() override {
      return contents_->records;
    }

   private:
    const Contents* const contents_;
  };

  std::map<CheckpointId, Contents> stored_;
  bool disk_full_ = false;
  std::pair<CheckpointId, int> pruned_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_SERVER_ENGINE_MEMORY_CHECKPOINT_STORE_H_
