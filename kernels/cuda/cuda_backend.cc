#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/checks.h"
#include "kernels/softmax.h"

namespace ccs::kernels::cuda {

CudaBackend::CudaBackend(const ShardConfig& config, const Device& device)
    : config_(config),
      device_(device),
      memory_(config, TileColumns(config, device.l2_bytes), &state_, &workspace_, &pinned_),
      staging_(&stream_, &pinned_),
      read_staging_(&read_stream_, &pinned_),
      products_(config.precision, &stream_, memory_.product_workspace),
      rows_{memory_.weight, memory_.momentum, nullptr, config.dim},
      target_slopes_(config.max_batch),
      partials_(config.max_batch),
      gathered_(static_cast<size_t>(config.max_batch) * config.num_shards) {}

absl::StatusOr<std::unique_ptr<ShardBackend>> CudaBackend::Make(const ShardConfig& config,
                                                                const Device& device) {
  auto backend = std::unique_ptr<CudaBackend>(new CudaBackend(config, device));
  for (const Memory* memory : {&backend->state_, &backend->workspace_, &backend->pinned_}) {
    if (!memory->status().ok()) return memory->status();
  }
  for (Stream* stream : {&backend->stream_, &backend->read_stream_}) {
    if (absl::Status status = stream->Finish(); !status.ok()) return status;
  }
  return backend;
}

absl::Status CudaBackend::Enter(Phase needed) const {
  if (phase_ < needed) return absl::FailedPreconditionError("the calls of a step came in the wrong order");
  return ToStatus(cudaSetDevice(device_.index), "take a thread");
}

absl::Status CudaBackend::InitialiseRows() {
  if (absl::Status status = Enter(Phase::kNothing); !status.ok()) return status;
  stream_.Note(
      cuda::InitialiseRows(rows_, config_.num_local, config_.class_start, config_.seed, stream_.get()),
      "draw centres");
  return stream_.Finish();
}

absl::Status CudaBackend::ReadRows(int64_t first_row, int64_t num_rows, float* weight,
                                   float* momentum) const {
  if (absl::Status status = CheckRange(first_row, num_rows, config_); !status.ok()) return status;
  if (absl::Status status = ToStatus(cudaSetDevice(device_.index), "take a thread"); !status.ok())
    return status;
  const std::lock_guard lock(read_mutex_);
  const int64_t first = first_row * config_.dim;
  const int64_t bytes = num_rows * config_.dim * static_cast<int64_t>(sizeof(float));
  if (weight != nullptr) read_staging_.ToHost(memory_.weight + first, bytes, weight);
  if (momentum != nullptr) read_staging_.ToHost(memory_.momentum + first, bytes, momentum);
  return read_stream_.Finish();
}

absl::Status CudaBackend::WriteRows(int64_t first_row, int64_t num_rows, const float* weight,
                                    const float* momentum) {
  if (absl::Status status = CheckRange(first_row, num_rows, config_); !status.ok()) return status;
  if (absl::Status status = Enter(Phase::kNothing); !status.ok()) return status;
  const int64_t first = first_row * config_.dim;
  const int64_t count = num_rows * config_.dim;
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  staging_.ToDevice(weight, bytes, memory_.weight + first);
  if (momentum != nullptr) {
    staging_.ToDevice(momentum, bytes, memory_.momentum + first);
  } else {
    stream_.Zero(memory_.momentum + first, count);
  }
  return stream_.Finish();
}

absl::Status CudaBackend::SetBatch(absl::Span<const int64_t> labels) {
  phase_ = Phase::kNothing;
  if (absl::Status status = CheckLabels(labels, config_.max_batch); !status.ok()) return status;
  if (absl::Status status = Enter(Phase::kNothing); !status.ok()) return status;
  labels_.assign(labels.begin(), labels.end());
  batch_ = static_cast<int>(labels.size());
  labelled_ = static_cast<int>(batch_ - std::count(labels.begin(), labels.end(), int64_t{-1}));
  stream_.CopyToDevice(memory_.host_features, int64_t{batch_} * config_.dim, memory_.features);
  stream_.Note(PrepareFeatures(DeviceBatch(), config_.normalise_features, memory_.feature_factors,
                               memory_.unit_stride, stream_.get()),
               "normalise features");
  stream_.CopyToHost(memory_.norms, batch_, memory_.host_norms);
  if (absl::Status status = stream_.Finish(); !status.ok()) return status;
  for (int row = 0; row < batch_; ++row) {
    if (absl::Status status = CheckFinite(memory_.host_norms[row], row); !status.ok()) return status;
  }
  phase_ = Phase::kBatch;
  return absl::OkStatus();
}

absl::Status CudaBackend::SetTargets(const Head& head, absl::Span<const int64_t> rows) {
  if (absl::Status status = CheckHead(head, config_.normalise_features); !status.ok()) return status;
  if (absl::Status status = CheckSample(rows, config_); !status.ok()) return status;
  for (int i = 0; i < batch_; ++i) {
    const absl::StatusOr<int64_t> column = TargetColumn(labels_[i], i, rows, config_);
    if (!column.ok()) return column.status();
    memory_.host_target_columns[i] = *column;
    memory_.host_targets[i] = *column < 0 ? -1 : rows[*column];
  }
  head_ = head;
  rule_ = LogitRuleOf(head, config_.normalise_features);
  SetSample(rows);
  stream_.CopyToDevice(memory_.host_targets, batch_, memory_.targets);
  stream_.CopyToDevice(memory_.host_target_columns, batch_, memory_.target_columns);
  stream_.Note(TargetCosines(DeviceBatch(), rows_, memory_.targets, memory_.target_cosines, stream_.get()),
               "score own classes");
  stream_.CopyToHost(memory_.target_cosines, batch_, memory_.host_target_cosines);
  return absl::OkStatus();
}

void CudaBackend::SetSample(absl::Span<const int64_t> rows) {
  sampled_ = static_cast<int64_t>(rows.size());
  rows_.sample = nullptr;
  if (sampled_ == config_.num_local) return;  // all of them, in order
  rows_.sample = memory_.sample;
  staging_.ToDevice(rows.data(), sampled_ * static_cast<int64_t>(sizeof(int64_t)), memory_.sample);
}

void CudaBackend::TakeTargetCosines(const Head& head) {
  for (int i = 0; i < batch_; ++i) {
    partials_[i].target_logit = 0;
    if (memory_.host_targets[i] < 0) continue;
    const MarginedCosine margined = ApplyMargin(head.margin, memory_.host_target_cosines[i]);
    target_slopes_[i] = margined.slope;
    partials_[i].target_logit = head.scale * margined.value;
  }
}

void CudaBackend::StartSoftmax() {
  std::fill_n(memory_.host_running, batch_, RunningSoftmax{-std::numeric_limits<float>::infinity(), 0.0});
  stream_.CopyToDevice(memory_.host_running, batch_, memory_.running);
}

void CudaBackend::ForTiles(const std::function<void(const Tile&)>& visit) {
  for (int64_t first = 0; first < sampled_; first += memory_.tile_columns) {
    visit({first, static_cast<int>(std::min<int64_t>(memory_.tile_columns, sampled_ - first))});
  }
}

bool CudaBackend::IsKept(const Tile& tile) const {
  return (tile.first + memory_.tile_columns) * batch_ <= memory_.kept_floats;
}

float* CudaBackend::Cosines(const Tile& tile) const {
  return IsKept(tile) ? memory_.kept + tile.first * batch_ : memory_.cosines;
}

void CudaBackend::Score(const Tile& tile) {
  stream_.Note(
      GatherUnitRows(rows_, tile, memory_.element, memory_.unit_rows, memory_.unit_stride, stream_.get()),
      "gather rows");
  Factor unit_rows = UnitRowFactor();
  unit_rows.transposed = true;
  products_.Multiply({batch_, tile.columns, config_.dim}, FeatureFactor(), unit_rows, /*accumulate=*/false,
                     Cosines(tile), memory_.tile_columns);
}

ScoredTile CudaBackend::Scored(const Tile& tile) const {
  return {.batch = DeviceBatch(),
          .rows = rows_,
          .tile = tile,
          .rule = rule_,
          .cosines = Cosines(tile),
          .stride = memory_.tile_columns,
          .target_columns = memory_.target_columns,
          .element = memory_.element,
          .weights = memory_.weights};
}

Factor CudaBackend::FeatureFactor() const {
  if (memory_.element == Element::kFloat) return {memory_.features, config_.dim};
  return {memory_.feature_factors, memory_.unit_stride};
}

}  // namespace ccs::kernels::cuda
