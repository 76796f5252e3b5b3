// A backend whose arithmetic can be done by hand, and that remembers what was called.
#ifndef CCS_TESTS_SERVER_ENGINE_FAKE_BACKEND_H_
#define CCS_TESTS_SERVER_ENGINE_FAKE_BACKEND_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/shard_backend.h"

namespace ccs::testing {

// The feature gradient is the features (of one shard); the loss is the number of shards that took part; Pass2
// subtracts the learning rate from every sampled row.
class FakeBackend : public kernels::ShardBackend {
 public:
  // Called at the start of each call that takes part in an operation, on the engine's thread; may block, or
  // return the error of that call. Set it before the engine starts.
  using Hook = std::function<absl::Status(const std::string& call)>;

  explicit FakeBackend(const kernels::ShardConfig& config, Hook hook = nullptr)
      : config_(config),
        hook_(std::move(hook)),
        weight_(config.num_local * config.dim),
        momentum_(weight_.size()),
        features_(config.max_batch * config.dim) {}

  const kernels::ShardConfig& config() const override { return config_; }
  kernels::MemoryNeed memory() const override { return {}; }
  std::string device_name() const override { return "fake"; }

  absl::Status InitialiseRows() override {
    std::fill(weight_.begin(), weight_.end(), 1.0f);
    std::fill(momentum_.begin(), momentum_.end(), 0.0f);
    return Call("InitialiseRows");
  }
  absl::Status ReadRows(int64_t first, int64_t rows, float* weight, float* momentum) const override {
    const auto copy = [&](const std::vector<float>& from, float* to) {
      if (to != nullptr) std::copy_n(from.begin() + first * config_.dim, rows * config_.dim, to);
    };
    copy(weight_, weight);
    copy(momentum_, momentum);
    return absl::OkStatus();
  }
  absl::Status WriteRows(int64_t first, int64_t rows, const float* weight, const float* momentum) override {
    std::copy_n(weight, rows * config_.dim, weight_.begin() + first * config_.dim);
    const auto to = momentum_.begin() + first * config_.dim;
    if (momentum != nullptr) {
      std::copy_n(momentum, rows * config_.dim, to);
    } else {
      std::fill_n(to, rows * config_.dim, 0.0f);
    }
    return Call("WriteRows");
  }

  float* features() override { return features_.data(); }
  absl::Status SetBatch(absl::Span<const int64_t> labels) override {
    labels_.assign(labels.begin(), labels.end());
    partials_.assign(labels.size(), {0, 1, 0});
    gathered_.assign(labels.size() * config_.num_shards, {});
    return Call("SetBatch");
  }

  absl::Status Pass1(const kernels::Head& head, absl::Span<const int64_t> sampled_rows) override {
    head_ = head;
    sampled_ = sampled_rows;
    gradient_.assign(features_.begin(),
                     features_.begin() + static_cast<int64_t>(labels_.size()) * config_.dim);
    return Call("Pass1");
  }
  const kernels::RowPartial* partials() const override { return partials_.data(); }
  kernels::RowPartial* gathered_partials() override { return gathered_.data(); }
  absl::StatusOr<double> Combine() override {
    if (absl::Status status = Call("Combine"); !status.ok()) return status;
    double shards = 0;
    for (int k = 0; k < config_.num_shards && !labels_.empty(); ++k)
      shards += gathered_[k * labels_.size()].exp_sum;
    return shards;
  }
  float* gradient_sum() override { return gradient_.data(); }
  absl::Status FinishFeatureGradient(int first_row, int num_rows, float* /*gradient*/) override {
    finished_rows_ = {first_row, num_rows};
    return Call("FinishFeatureGradient");
  }
  absl::Status Pass2(const kernels::UpdateParams& params) override {
    if (absl::Status status = Call("Pass2"); !status.ok()) return status;
    for (const int64_t row : sampled_) {
      for (int d = 0; d < config_.dim; ++d) weight_[row * config_.dim + d] -= params.learning_rate;
    }
    return absl::OkStatus();
  }

  absl::Status Evaluate(const kernels::Head& /*head*/, absl::Span<const int64_t> rows,
                        std::vector<kernels::EvaluationPartial>* partials) override {
    evaluated_rows_ = static_cast<int64_t>(rows.size());
    partials->assign(labels_.size(), {{0, 1, 0}, 0.5, 0.25});
    return Call("Evaluate");
  }
  absl::Status Nearest(int k, std::vector<kernels::Neighbour>* neighbours) override {
    neighbours->assign(labels_.size() * k, {-1, -1});
    for (size_t i = 0; i < labels_.size(); ++i) {
      (*neighbours)[i * k] = {features_[i * config_.dim], config_.class_start};
    }
    return Call("Nearest");
  }

  std::vector<std::string> calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  // The rest only while the engine is idle.
  const kernels::Head& head() const { return head_; }
  const std::vector<int64_t>& labels() const { return labels_; }
  std::pair<int, int> finished_rows() const { return finished_rows_; }
  int64_t evaluated_rows() const { return evaluated_rows_; }

 private:
  absl::Status Call(const char* name) {
    {
      std::lock_guard lock(mutex_);
      calls_.push_back(name);
    }
    return hook_ ? hook_(name) : absl::OkStatus();
  }

  const kernels::ShardConfig config_;
  const Hook hook_;
  std::vector<float> weight_;
  std::vector<float> momentum_;
  std::vector<float> features_;
  std::vector<int64_t> labels_;
  std::vector<kernels::RowPartial> partials_;
  std::vector<kernels::RowPartial> gathered_;
  std::vector<float> gradient_;
  absl::Span<const int64_t> sampled_;
  kernels::Head head_;
  std::pair<int, int> finished_rows_;
  int64_t evaluated_rows_ = -1;

  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_SERVER_ENGINE_FAKE_BACKEND_H_
