// Evaluation and nearest centres. Products find the candidates; what is reported is their cosine in double.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/product.h"
#include "kernels/softmax.h"

namespace ccs::kernels {
namespace {

// More than a single precision cosine of unit features is ever off.
constexpr double kCosineError = 1e-5;

}  // namespace

absl::Status CpuBackend::Evaluate(const Head& head, absl::Span<const int64_t> rows,
                                  std::vector<EvaluationPartial>* partials) {
  if (absl::Status status = CheckPhase(Phase::kBatch); !status.ok()) return status;
  phase_ = Phase::kNothing;
  if (absl::Status status = SetTargets(head, rows); !status.ok()) return status;
  std::vector<Neighbour> best_others(batch_, Neighbour{-std::numeric_limits<double>::infinity(), -1});
  const auto visit = [&](const Chunk& chunk, const Tile& tile, const float* unit_rows, int worker) {
    float* cosines = memory_.scratch[worker].weights;
    absl::Status status = ScoreOthers(chunk, tile, unit_rows, cosines);
    for (int i = 0; i < chunk.rows && status.ok(); ++i) {
      float* row_cosines = cosines + int64_t{i} * kTileStride;
      const int row = chunk.first + i;
      FindNearer(row, sampled_, tile, row_cosines, 1, &best_others[row]);
      AddToSoftmax(row_cosines, tile.columns, rule_, &memory_.rows[row].others, row_cosines);
    }
    return status;
  };
  absl::Status status = WalkTiles(memory_, config_.dim, batch_, sampled_, &pool_, visit);
  if (!status.ok()) return status;
  partials->resize(batch_);
  for (int i = 0; i < batch_; ++i) {
    const BatchRow& row = memory_.rows[i];
    const double target =
        row.target_column < 0 ? -std::numeric_limits<double>::infinity() : row.target_cosine;
    (*partials)[i] = {{row.others.max, row.others.exp_sum, memory_.partials[i].target_logit},
                      target,
                      best_others[i].cosine};
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Nearest(int k, std::vector<Neighbour>* neighbours) {
  if (absl::Status status = CheckPhase(Phase::kBatch); !status.ok()) return status;
  if (k < 1) return absl::InvalidArgumentError(absl::StrCat("k is ", k, "; it must be at least 1"));
  phase_ = Phase::kNothing;
  neighbours->assign(static_cast<size_t>(batch_) * k,
                     Neighbour{-std::numeric_limits<double>::infinity(), -1});
  const RowSet all = RowSet::All(config_.num_local);
  return WalkTiles(memory_, config_.dim, batch_, all, &pool_,
                   [&](const Chunk& chunk, const Tile& tile, const float* unit_rows, int worker) {
                     float* cosines = memory_.scratch[worker].weights;
                     absl::Status status = Score(chunk, tile, unit_rows, cosines);
                     for (int i = 0; i < chunk.rows && status.ok(); ++i) {
                       const int64_t row = chunk.first + i;
                       FindNearer(row, all, tile, cosines + i * kTileStride, k, neighbours->data() + row * k);
                     }
                     return status;
                   });
}

// Keeps `nearest` [k] the best of the rows so far, best first.
void CpuBackend::FindNearer(int batch_row, const RowSet& set, const Tile& tile, const float* cosines, int k,
                            Neighbour* nearest) const {
  const double slack = kCosineError * (config_.normalise_features ? 1.0 : memory_.rows[batch_row].norm);
  Neighbour& last = nearest[k - 1];
  if (MaxOf(cosines, tile.columns) < last.cosine - slack) return;
  for (int column = 0; column < tile.columns; ++column) {
    if (std::isinf(cosines[column]) || cosines[column] < last.cosine - slack) continue;
    const int64_t local = set[tile.first + column];
    const Neighbour found{Cosine(batch_row, local), config_.class_start + local};
    if (!Nearer(found, last)) continue;
    Neighbour* at = std::upper_bound(nearest, nearest + k, found, Nearer);
    std::move_backward(at, nearest + k - 1, nearest + k);
    *at = found;
  }
}

}  // namespace ccs::kernels
