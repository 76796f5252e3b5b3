// Between the passes: the loss, and the gradient with respect to the features.
#include <cmath>

#include "kernels/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/softmax.h"

namespace ccs::kernels {

absl::StatusOr<double> CpuBackend::Combine() {
  if (absl::Status status = CheckPhase(Phase::kScored); !status.ok()) return status;
  if (phase_ == Phase::kCombined) return absl::FailedPreconditionError("this step was combined before");
  double loss_sum = 0;
  for (int i = 0; i < batch_; ++i) loss_sum += SetGradientFactors(i);
  pool_.ParallelFor(CeilDiv(batch_, kChunkRows), [this](int64_t c, int) {
    const Chunk chunk = ChunkAt(batch_, c);
    for (int i = 0; i < chunk.rows; ++i) ScaleNumerator(chunk.first + i);
  });
  phase_ = Phase::kCombined;
  return loss_sum / std::max(labelled_, 1);
}

// Returns the row's loss.
double CpuBackend::SetGradientFactors(int batch_row) {
  BatchRow& row = memory_.rows[batch_row];
  row.factors = GradientFactors();
  if (memory_.labels[batch_row] < 0) return 0;
  MergedSoftmax merged;
  for (int shard = 0; shard < config_.num_shards; ++shard) {
    merged.Add(memory_.gathered[int64_t{shard} * batch_ + batch_row]);
  }
  const double factor = merged.WrongShare() * head_.scale / labelled_;
  row.factors = FactorsOf(merged, memory_.partials[batch_row], factor);
  if (row.target_column >= 0) row.factors.target = static_cast<float>(-factor * row.target_slope);
  return merged.Loss();
}

void CpuBackend::ScaleNumerator(int batch_row) {
  const BatchRow& row = memory_.rows[batch_row];
  float* gradient = memory_.numerator + int64_t{batch_row} * config_.dim;
  Scale(gradient, row.factors.numerator, config_.dim, gradient);
  if (row.target_column < 0) return;
  const float* weight = Weight(sampled_[row.target_column]);
  const double norm = std::max(std::sqrt(Dot(weight, weight, config_.dim)), kMinNorm);
  AddScaled(weight, static_cast<float>(row.factors.target / norm), config_.dim, gradient);
}

absl::Status CpuBackend::FinishFeatureGradient(int first_row, int num_rows, float* gradient) {
  if (absl::Status status = CheckPhase(Phase::kCombined); !status.ok()) return status;
  if (absl::Status status = CheckBatchRange(first_row, num_rows, batch_); !status.ok()) return status;
  if (!config_.normalise_features) return absl::OkStatus();
  for (int i = 0; i < num_rows; ++i) {
    float* row = gradient + int64_t{i} * config_.dim;
    const float* unit = UnitFeatures(first_row + i);
    const double norm = memory_.rows[first_row + i].norm;
    if (norm <= kMinNorm) {
      std::fill_n(row, config_.dim, 0.0f);
      continue;
    }
    AddScaled(unit, static_cast<float>(-Dot(row, unit, config_.dim)), config_.dim, row);
    Scale(row, static_cast<float>(1.0 / norm), config_.dim, row);
  }
  return absl::OkStatus();
}

}  // namespace ccs::kernels
