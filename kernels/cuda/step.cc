// The passes of a step and what lies between them.
#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/softmax.h"

namespace ccs::kernels::cuda {

absl::Status CudaBackend::Pass1(const Head& head, absl::Span<const int64_t> sampled_rows) {
  if (absl::Status status = Enter(Phase::kBatch); !status.ok()) return status;
  phase_ = Phase::kBatch;
  if (absl::Status status = SetTargets(head, sampled_rows); !status.ok()) return status;
  StartSoftmax();
  if (sampled_ == 0) stream_.Zero(memory_.numerator, int64_t{batch_} * config_.dim);
  ForTiles([this](const Tile& tile) {
    Score(tile);
    stream_.Note(AddTileToSoftmax(Scored(tile), memory_.running, memory_.numerator, stream_.get()),
                 "add up a softmax");
    products_.Multiply({batch_, config_.dim, tile.columns}, {memory_.weights, memory_.tile_columns},
                       UnitRowFactor(), /*accumulate=*/tile.first > 0, memory_.numerator, config_.dim);
  });
  stream_.CopyToHost(memory_.running, batch_, memory_.host_running);
  if (absl::Status status = stream_.Finish(); !status.ok()) return status;
  TakeTargetCosines(head);
  for (int i = 0; i < batch_; ++i) {
    partials_[i].max = memory_.host_running[i].max;
    partials_[i].exp_sum = memory_.host_running[i].exp_sum;
  }
  phase_ = Phase::kScored;
  return absl::OkStatus();
}

absl::StatusOr<double> CudaBackend::Combine() {
  if (absl::Status status = Enter(Phase::kScored); !status.ok()) return status;
  if (phase_ == Phase::kCombined) return absl::FailedPreconditionError("this step was combined before");
  double loss_sum = 0;
  for (int i = 0; i < batch_; ++i) loss_sum += SetGradientFactors(i);
  stream_.CopyToDevice(memory_.host_factors, batch_, memory_.factors);
  stream_.Note(ScaleNumerator(DeviceBatch(), rows_, memory_.targets, memory_.factors, memory_.numerator,
                              stream_.get()),
               "scale the gradient");
  stream_.CopyToHost(memory_.numerator, int64_t{batch_} * config_.dim, memory_.host_gradient_sum);
  if (absl::Status status = stream_.Finish(); !status.ok()) return status;
  phase_ = Phase::kCombined;
  return loss_sum / std::max(labelled_, 1);
}

// Returns the row's loss.
double CudaBackend::SetGradientFactors(int batch_row) {
  RowFactors& row = memory_.host_factors[batch_row];
  row = {};
  if (labels_[batch_row] < 0) return 0;
  MergedSoftmax merged;
  for (int shard = 0; shard < config_.num_shards; ++shard) {
    merged.Add(gathered_[static_cast<size_t>(shard) * batch_ + batch_row]);
  }
  const double factor = merged.WrongShare() * head_.scale / labelled_;
  const GradientFactors factors = FactorsOf(merged, partials_[batch_row], factor);
  row = {factors.reference, factors.other, factors.numerator, 0};
  if (memory_.host_targets[batch_row] >= 0) {
    row.target = static_cast<float>(-factor * target_slopes_[batch_row]);
  }
  return merged.Loss();
}

absl::Status CudaBackend::FinishFeatureGradient(int first_row, int num_rows, float* gradient) {
  if (absl::Status status = Enter(Phase::kCombined); !status.ok()) return status;
  if (absl::Status status = CheckBatchRange(first_row, num_rows, batch_); !status.ok()) return status;
  if (!config_.normalise_features) return absl::OkStatus();
  const int64_t bytes = int64_t{num_rows} * config_.dim * static_cast<int64_t>(sizeof(float));
  staging_.ToDevice(gradient, bytes, memory_.gradient);
  stream_.Note(FinishGradient(DeviceBatch(), first_row, num_rows, memory_.gradient, stream_.get()),
               "finish the gradient");
  staging_.ToHost(memory_.gradient, bytes, gradient);
  return stream_.Finish();
}

absl::Status CudaBackend::Pass2(const UpdateParams& params) {
  if (absl::Status status = Enter(Phase::kCombined); !status.ok()) return status;
  phase_ = Phase::kNothing;
  const Update update{params.learning_rate, params.momentum, params.weight_decay};
  if (batch_ == 0) stream_.Zero(memory_.unit_row_gradients, int64_t{memory_.tile_columns} * config_.dim);
  ForTiles([&](const Tile& tile) {
    if (!IsKept(tile)) Score(tile);
    stream_.Note(GradientTile(Scored(tile), memory_.factors, stream_.get()), "form a gradient");
    if (batch_ > 0) {
      products_.Multiply({tile.columns, config_.dim, batch_},
                         {memory_.weights, memory_.tile_columns, /*transposed=*/true}, FeatureFactor(),
                         /*accumulate=*/false, memory_.unit_row_gradients, config_.dim);
    }
    stream_.Note(UpdateRows(rows_, tile, memory_.unit_row_gradients, update, stream_.get()), "update rows");
  });
  return stream_.Finish();
}

}  // namespace ccs::kernels::cuda
