// Evaluation and nearest centres. Products find the candidates; what is reported is their cosine in double.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_backend.h"

namespace ccs::kernels::cuda {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// More than a cosine of unit features is ever off: both factors are rounded, to bfloat16 by at most 2^-9 of
// themselves, to TF32 by 2^-10 (if it cuts off), and the sum adds a little.
double CosineError(Precision precision) {
  if (ElementOf(precision) == Element::kBFloat16) return 4.5e-3;
  return precision == Precision::kTf32 ? 2.2e-3 : 1e-5;
}

// The lists of a query, on the device and on the host.
class Lists {
 public:
  Lists(const ShardConfig& config, int batch, int k)
      : cosines_(static_cast<size_t>(batch) * k, kNone), class_ids_(cosines_.size(), -1) {
    columns_ = {.cosines = device_.Take<double>(size()),
                .class_ids = device_.Take<int64_t>(size()),
                .k = k,
                .class_start = config.class_start,
                .slack = CosineError(config.precision),
                .unit_features = config.normalise_features};
  }
  const absl::Status& status() const { return device_.status(); }
  const NearestColumns& columns() const { return columns_; }
  Neighbour at(size_t i) const { return {cosines_[i], class_ids_[i]}; }

  void ToDevice(Staging* staging) {
    staging->ToDevice(cosines_.data(), Bytes<double>(), columns_.cosines);
    staging->ToDevice(class_ids_.data(), Bytes<int64_t>(), columns_.class_ids);
  }
  void ToHost(Staging* staging) {
    staging->ToHost(columns_.cosines, Bytes<double>(), cosines_.data());
    staging->ToHost(columns_.class_ids, Bytes<int64_t>(), class_ids_.data());
  }

 private:
  int64_t size() const { return static_cast<int64_t>(cosines_.size()); }
  template <typename T>
  int64_t Bytes() const {
    return size() * static_cast<int64_t>(sizeof(T));
  }

  Memory device_{MemoryKind::kDevice};
  std::vector<double> cosines_;
  std::vector<int64_t> class_ids_;
  NearestColumns columns_{};
};

}  // namespace

absl::Status CudaBackend::Evaluate(const Head& head, absl::Span<const int64_t> rows,
                                   std::vector<EvaluationPartial>* partials) {
  if (absl::Status status = Enter(Phase::kBatch); !status.ok()) return status;
  phase_ = Phase::kNothing;
  Lists best_others(config_, batch_, 1);
  if (!best_others.status().ok()) return best_others.status();
  if (absl::Status status = SetTargets(head, rows); !status.ok()) return status;
  best_others.ToDevice(&staging_);
  StartSoftmax();
  ForTiles([&](const Tile& tile) {
    Score(tile);
    stream_.Note(FindNearest(Scored(tile), best_others.columns(), stream_.get()), "find the nearest");
    stream_.Note(AddTileToSoftmax(Scored(tile), memory_.running, nullptr, stream_.get()), "add up a softmax");
  });
  stream_.CopyToHost(memory_.running, batch_, memory_.host_running);
  best_others.ToHost(&staging_);
  if (absl::Status status = stream_.Finish(); !status.ok()) return status;
  TakeTargetCosines(head);
  partials->resize(batch_);
  for (int i = 0; i < batch_; ++i) {
    const RunningSoftmax& others = memory_.host_running[i];
    (*partials)[i] = {{others.max, others.exp_sum, partials_[i].target_logit},
                      memory_.host_targets[i] < 0 ? kNone : memory_.host_target_cosines[i],
                      best_others.at(i).cosine};
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::Nearest(int k, std::vector<Neighbour>* neighbours) {
  if (absl::Status status = Enter(Phase::kBatch); !status.ok()) return status;
  if (k < 1) return absl::InvalidArgumentError(absl::StrCat("k is ", k, "; it must be at least 1"));
  phase_ = Phase::kNothing;
  Lists lists(config_, batch_, k);
  if (!lists.status().ok()) return lists.status();
  lists.ToDevice(&staging_);
  sampled_ = config_.num_local;
  rows_.sample = nullptr;
  // No column is left out.
  std::fill_n(memory_.host_target_columns, batch_, int64_t{-1});
  stream_.CopyToDevice(memory_.host_target_columns, batch_, memory_.target_columns);
  ForTiles([&](const Tile& tile) {
    Score(tile);
    stream_.Note(FindNearest(Scored(tile), lists.columns(), stream_.get()), "find the nearest");
  });
  lists.ToHost(&staging_);
  if (absl::Status status = stream_.Finish(); !status.ok()) return status;
  neighbours->resize(static_cast<size_t>(batch_) * k);
  for (size_t i = 0; i < neighbours->size(); ++i) (*neighbours)[i] = lists.at(i);
  return absl::OkStatus();
}

}  // namespace ccs::kernels::cuda
