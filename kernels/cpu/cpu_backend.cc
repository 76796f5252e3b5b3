#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/checks.h"
#include "kernels/cpu/product.h"
#include "kernels/random.h"

namespace ccs::kernels {

CpuBackend::CpuBackend(const ShardConfig& config)
    : config_(config), memory_(config, &state_, &workspace_), pool_(config.threads) {}

std::string CpuBackend::device_name() const {
  return absl::StrCat("cpu, ", VectorTarget(), ", ", ProductLibrary(), ", ", config_.threads,
                      config_.threads == 1 ? " thread" : " threads");
}

absl::Status CpuBackend::CheckPhase(Phase needed) const {
  if (phase_ >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError("the calls of a step came in the wrong order");
}

absl::Status CpuBackend::InitialiseRows() {
  constexpr int64_t kRowsAtOnce = 256;
  pool_.ParallelFor(CeilDiv(config_.num_local, kRowsAtOnce), [&](int64_t unit, int) {
    const int64_t end = std::min((unit + 1) * kRowsAtOnce, config_.num_local);
    for (int64_t row = unit * kRowsAtOnce; row < end; ++row) {
      InitialCentre(config_.seed, config_.class_start + row, config_.dim, memory_.weight + row * config_.dim);
      std::fill_n(memory_.momentum + row * config_.dim, config_.dim, 0.0f);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::ReadRows(int64_t first_row, int64_t num_rows, float* weight, float* momentum) const {
  if (absl::Status status = CheckRange(first_row, num_rows, config_); !status.ok()) return status;
  const int64_t first = first_row * config_.dim;
  const int64_t count = num_rows * config_.dim;
  if (weight != nullptr) std::copy_n(memory_.weight + first, count, weight);
  if (momentum != nullptr) std::copy_n(memory_.momentum + first, count, momentum);
  return absl::OkStatus();
}

absl::Status CpuBackend::WriteRows(int64_t first_row, int64_t num_rows, const float* weight,
                                   const float* momentum) {
  if (absl::Status status = CheckRange(first_row, num_rows, config_); !status.ok()) return status;
  const int64_t first = first_row * config_.dim;
  const int64_t count = num_rows * config_.dim;
  std::copy_n(weight, count, memory_.weight + first);
  if (momentum != nullptr) {
    std::copy_n(momentum, count, memory_.momentum + first);
  } else {
    std::fill_n(memory_.momentum + first, count, 0.0f);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::SetBatch(absl::Span<const int64_t> labels) {
  phase_ = Phase::kNothing;
  if (absl::Status status = CheckLabels(labels, config_.max_batch); !status.ok()) return status;
  batch_ = static_cast<int>(labels.size());
  labelled_ = static_cast<int>(batch_ - std::count(labels.begin(), labels.end(), int64_t{-1}));
  std::copy(labels.begin(), labels.end(), memory_.labels);
  for (int row = 0; row < batch_; ++row) {
    float* features = memory_.features + int64_t{row} * config_.dim;
    const double norm = std::sqrt(Dot(features, features, config_.dim));
    if (absl::Status status = CheckFinite(norm, row); !status.ok()) return status;
    memory_.rows[row].norm = norm;
    if (config_.normalise_features) {
      Scale(features, static_cast<float>(1.0 / std::max(norm, kMinNorm)), config_.dim, features);
    }
  }
  phase_ = Phase::kBatch;
  return absl::OkStatus();
}

absl::Status CpuBackend::SetTargets(const Head& head, absl::Span<const int64_t> rows) {
  if (absl::Status status = CheckHead(head, config_.normalise_features); !status.ok()) return status;
  if (absl::Status status = CheckSample(rows, config_); !status.ok()) return status;
  head_ = head;
  rule_ = LogitRuleOf(head, config_.normalise_features);
  sampled_ = RowSet(rows);
  for (int i = 0; i < batch_; ++i) {
    if (absl::Status status = FindTarget(i, rows); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::FindTarget(int batch_row, absl::Span<const int64_t> rows) {
  BatchRow& row = memory_.rows[batch_row];
  row.others = RunningSoftmax();
  row.target_column = -1;
  memory_.partials[batch_row].target_logit = 0;
  const absl::StatusOr<int64_t> column = TargetColumn(memory_.labels[batch_row], batch_row, rows, config_);
  if (!column.ok() || *column < 0) return column.status();
  row.target_column = *column;
  row.target_cosine = Cosine(batch_row, rows[*column]);
  const MarginedCosine margined = ApplyMargin(head_.margin, row.target_cosine);
  row.target_slope = margined.slope;
  memory_.partials[batch_row].target_logit = head_.scale * margined.value;
  return absl::OkStatus();
}

double CpuBackend::Cosine(int batch_row, int64_t local_row) const {
  const float* weight = Weight(local_row);
  const double norm = std::sqrt(Dot(weight, weight, config_.dim));
  return Dot(UnitFeatures(batch_row), weight, config_.dim) / std::max(norm, kMinNorm);
}

absl::Status CpuBackend::Score(const Chunk& chunk, const Tile& tile, const float* unit_rows,
                               float* cosines) const {
  return Multiply({chunk.rows, tile.columns, config_.dim}, {UnitFeatures(chunk.first), config_.dim},
                  {unit_rows, memory_.row_stride, /*transposed=*/true}, /*accumulate=*/false, cosines,
                  kTileStride);
}

absl::Status CpuBackend::ScoreOthers(const Chunk& chunk, const Tile& tile, const float* unit_rows,
                                     float* cosines) const {
  if (absl::Status status = Score(chunk, tile, unit_rows, cosines); !status.ok()) return status;
  for (int i = 0; i < chunk.rows; ++i) {
    const int64_t column = memory_.rows[chunk.first + i].target_column - tile.first;
    if (column >= 0 && column < tile.columns) {
      cosines[int64_t{i} * kTileStride + column] = -std::numeric_limits<float>::infinity();
    }
  }
  return absl::OkStatus();
}

double CpuBackend::RefineWeights(int batch_row, const Tile& tile, double reference, double factor,
                                 float large, float* weights) const {
  double growth = 0;
  for (int column = 0; column < tile.columns; ++column) {
    if (!(weights[column] > large)) continue;
    const double z = rule_.scale * Cosine(batch_row, sampled_[tile.first + column]);
    const auto refined = static_cast<float>(factor * std::exp(z - reference));
    growth += static_cast<double>(refined) - weights[column];
    weights[column] = refined;
  }
  return growth;
}

}  // namespace ccs::kernels
