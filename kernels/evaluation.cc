// Putting the shards' answers together: the same arithmetic for every device.
#include <algorithm>
#include <limits>

#include "kernels/shard_backend.h"
#include "kernels/softmax.h"

namespace ccs::kernels {

Evaluation CombineEvaluation(absl::Span<const EvaluationPartial> partials, int num_shards,
                             absl::Span<const int64_t> labels) {
  Evaluation evaluation;
  const size_t batch = labels.size();
  for (size_t row = 0; row < batch; ++row) {
    if (labels[row] < 0) continue;
    MergedSoftmax merged;
    double target = -std::numeric_limits<double>::infinity();
    double best_other = target;
    for (int shard = 0; shard < num_shards; ++shard) {
      const EvaluationPartial& partial = partials[shard * batch + row];
      merged.Add(partial.softmax);
      target = std::max(target, partial.target_cosine);
      best_other = std::max(best_other, partial.best_other_cosine);
    }
    evaluation.loss_sum += Softplus(merged.log_sum() - merged.target_logit());
    if (target > best_other) ++evaluation.rank1_hits;
  }
  return evaluation;
}

std::vector<Neighbour> MergeNeighbours(absl::Span<const Neighbour> neighbours, int num_shards, int num_rows,
                                       int k) {
  std::vector<Neighbour> merged(static_cast<size_t>(num_rows) * k);
  std::vector<Neighbour> candidates;
  for (int row = 0; row < num_rows; ++row) {
    candidates.clear();
    for (int shard = 0; shard < num_shards; ++shard) {
      const Neighbour* first = neighbours.data() + (static_cast<size_t>(shard) * num_rows + row) * k;
      candidates.insert(candidates.end(), first, first + k);
    }
    std::partial_sort(candidates.begin(), candidates.begin() + k, candidates.end(), Nearer);
    std::copy_n(candidates.begin(), k, merged.begin() + static_cast<size_t>(row) * k);
  }
  return merged;
}

}  // namespace ccs::kernels
