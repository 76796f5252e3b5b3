#include "tests/kernels/backend_cluster.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/backend_under_test.h"

namespace ccs::kernels {

BackendCluster::BackendCluster(const ClusterSpec& spec) : dim_(spec.dim) {
  const auto split = testing::EmptyReferenceShards(spec.num_classes, spec.num_shards, 0);
  for (const testing::ReferenceShard& range : split) {
    ShardConfig config;
    config.class_start = range.class_start;
    config.num_local = range.num_local;
    config.dim = spec.dim;
    config.num_shards = spec.num_shards;
    config.max_batch = spec.max_batch;
    config.seed = spec.seed;
    config.normalise_features = spec.normalise_features;
    config.precision = spec.precision;
    config.kept_logits_bytes = spec.kept_logits_bytes;
    config.threads = spec.threads;
    shards_.push_back(MakeBackend(config).value());
    shards_.back()->InitialiseRows().IgnoreError();
  }
}

absl::Status BackendCluster::SetBatch(absl::Span<const float> features, absl::Span<const int64_t> labels) {
  for (auto& shard : shards_) {
    std::copy(features.begin(), features.end(), shard->features());
    if (absl::Status status = shard->SetBatch(labels); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<BackendCluster::StepResult> BackendCluster::Step(absl::Span<const float> features,
                                                                absl::Span<const int64_t> labels,
                                                                const SampledRows& sampled, const Head& head,
                                                                const UpdateParams& update) {
  if (absl::Status status = SetBatch(features, labels); !status.ok()) return status;
  const size_t batch = labels.size();
  std::vector<RowPartial> gathered;
  for (int rank = 0; rank < num_shards(); ++rank) {
    if (absl::Status status = shards_[rank]->Pass1(head, sampled[rank]); !status.ok()) return status;
    gathered.insert(gathered.end(), shards_[rank]->partials(), shards_[rank]->partials() + batch);
  }
  StepResult result;
  result.gradient.assign(batch * dim_, 0.0f);
  for (int rank = 0; rank < num_shards(); ++rank) {
    std::copy(gathered.begin(), gathered.end(), shards_[rank]->gathered_partials());
    const absl::StatusOr<double> loss = shards_[rank]->Combine();
    if (!loss.ok()) return loss.status();
    if (rank > 0 && *loss != result.loss) return absl::InternalError("shards disagree on the loss");
    result.loss = *loss;
    for (size_t i = 0; i < result.gradient.size(); ++i)
      result.gradient[i] += shards_[rank]->gradient_sum()[i];
  }
  // Each shard finishes a segment of the rows.
  const int rows = static_cast<int>(batch);
  for (int rank = 0; rank < num_shards(); ++rank) {
    const int first = rows * rank / num_shards();
    const int end = rows * (rank + 1) / num_shards();
    const absl::Status status = shards_[rank]->FinishFeatureGradient(
        first, end - first, result.gradient.data() + static_cast<int64_t>(first) * dim_);
    if (!status.ok()) return status;
  }
  for (auto& shard : shards_) {
    if (absl::Status status = shard->Pass2(update); !status.ok()) return status;
  }
  return result;
}

std::vector<float> BackendCluster::Weight(int rank) const {
  const int64_t rows = shards_[rank]->config().num_local;
  std::vector<float> weight(rows * dim_);
  shards_[rank]->ReadRows(0, rows, weight.data(), nullptr).IgnoreError();
  return weight;
}

std::vector<float> BackendCluster::Momentum(int rank) const {
  const int64_t rows = shards_[rank]->config().num_local;
  std::vector<float> momentum(rows * dim_);
  shards_[rank]->ReadRows(0, rows, nullptr, momentum.data()).IgnoreError();
  return momentum;
}

SampledRows BackendCluster::AllRows() const {
  SampledRows all;
  for (const auto& shard : shards_) {
    all.emplace_back(shard->config().num_local);
    std::iota(all.back().begin(), all.back().end(), int64_t{0});
  }
  return all;
}

std::vector<testing::ReferenceShard> BackendCluster::ToReference() const {
  std::vector<testing::ReferenceShard> reference;
  for (int rank = 0; rank < num_shards(); ++rank) {
    const ShardConfig& config = shards_[rank]->config();
    reference.push_back(
        {config.class_start, config.num_local, ToDouble(Weight(rank)), ToDouble(Momentum(rank))});
  }
  return reference;
}

std::vector<double> ToDouble(absl::Span<const float> values) { return {values.begin(), values.end()}; }

testing::ReferenceHead ToReference(const Head& head) {
  return {head.scale, head.margin.m1, head.margin.m2, head.margin.m3, head.filter_threshold};
}

}  // namespace ccs::kernels
