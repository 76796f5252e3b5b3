// The contract of a shard's arithmetic, one implementation per kind of device (cpu/, cuda/).
//
// Layout, for the whole namespace: matrices are row-major and dense; B is the rows of the batch (all
// trainers), D the embedding width, n the sampled rows of this shard, N the number of shards. Local row r
// is class class_start + r.
#ifndef CCS_KERNELS_SHARD_BACKEND_H_
#define CCS_KERNELS_SHARD_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/head.h"

namespace ccs::kernels {

enum class Precision { kFp32, kTf32, kBf16, kFastest };

struct ShardConfig {
  int64_t class_start = 0;
  int64_t num_local = 0;  // 0: a shard without rows, which still takes part
  int dim = 0;
  int num_shards = 1;
  int max_batch = 4096;  // most rows in SetBatch
  uint64_t seed = 0;
  bool normalise_features = true;
  Precision precision = Precision::kFp32;
  int64_t kept_logits_bytes = int64_t{256} << 20;  // 0: pass 2 computes all logits again
  int threads = 1;
};

// Bytes a backend will hold.
struct MemoryNeed {
  int64_t state_bytes = 0;      // weights and momentum
  int64_t workspace_bytes = 0;  // everything else
};

// What one shard knows of one row's softmax after pass 1. Exchanged between shards as bytes.
struct RowPartial {
  double max;           // of z over this shard's sampled other columns; -infinity if there are none
  double exp_sum;       // of exp(z - max); 0 if there are none
  double target_logit;  // z of the row's own class if this shard owns it, else 0
};

struct UpdateParams {
  float learning_rate = 0;
  float momentum = 0.9f;
  float weight_decay = 5e-4f;
};

struct EvaluationPartial {
  RowPartial softmax;
  double target_cosine;      // if this shard owns the row's class, else -infinity
  double best_other_cosine;  // -infinity if this shard scored no other column
};

struct Evaluation {
  double loss_sum = 0;  // over labelled rows
  int64_t rank1_hits = 0;
};

struct Neighbour {
  double cosine = 0;
  int64_t class_id = -1;
};

// One shard's weights and momentum and the arithmetic on them.
//
// A step calls, in this order: SetBatch, Pass1, Combine, [the collective sums gradient_sum() over shards
// into a segment], FinishFeatureGradient, Pass2. SetBatch may start anew at any point: nothing before
// Pass2 changes weights or momentum.
//
// Thread-safety: one thread owns the backend. Another one may call ReadRows at any time for rows that the
// call in progress does not change (Pass2 changes the sampled rows only). A call may use config().threads
// threads; results do not depend on how many. Host memory unless said otherwise. Errors: INVALID_ARGUMENT for
// arguments out of contract, RESOURCE_EXHAUSTED for memory, INTERNAL for a failing device. An error before
// Pass2 leaves weights and momentum as they were; after an error in Pass2 they are undefined.
class ShardBackend {
 public:
  virtual ~ShardBackend() = default;

  virtual const ShardConfig& config() const = 0;
  virtual MemoryNeed memory() const = 0;
  // For people, e.g. "cpu, AVX2, oneDNN 2.6, 1 thread".
  virtual std::string device_name() const = 0;

  // ---- Rows.

  // Weights from N(0, 0.01^2), a pure function of (seed, class id); momentum 0.
  virtual absl::Status InitialiseRows() = 0;
  // Copies rows [first_row, first_row + num_rows) out; either pointer [num_rows, D] may be null.
  virtual absl::Status ReadRows(int64_t first_row, int64_t num_rows, float* weight,
                                float* momentum) const = 0;
  // Overwrites those rows; `momentum` null means zeros.
  virtual absl::Status WriteRows(int64_t first_row, int64_t num_rows, const float* weight,
                                 const float* momentum) = 0;

  // ---- Batch. The collective writes straight into these; valid as long as the backend.

  virtual float* features() = 0;  // [max_batch, D]; SetBatch may overwrite it
  // Takes features()[0, labels.size()) and the labels (class ids, -1 unlabelled) of all trainers as the
  // batch. Labels are copied.
  virtual absl::Status SetBatch(absl::Span<const int64_t> labels) = 0;

  // ---- Step.

  // Scores the batch against `sampled_rows` (sorted, without repeats, containing every local positive;
  // must stay alive until Pass2 returns) and leaves partials() and a numerator.
  virtual absl::Status Pass1(const Head& head, absl::Span<const int64_t> sampled_rows) = 0;
  virtual const RowPartial* partials() const = 0;  // [B]
  virtual RowPartial* gathered_partials() = 0;     // [N, B]; the collective fills it in rank order
  // From gathered_partials(): the loss, the same bits on every shard, averaged over labelled rows (0 if
  // there are none), and gradient_sum().
  virtual absl::StatusOr<double> Combine() = 0;
  // This shard's share of the gradient with respect to the unit features, [B, D], to be summed over shards.
  virtual float* gradient_sum() = 0;
  // Takes `gradient` [num_rows, D], the sum over shards for batch rows [first_row, first_row + num_rows),
  // through the feature normalisation, in place.
  virtual absl::Status FinishFeatureGradient(int first_row, int num_rows, float* gradient) = 0;
  // Updates weights and momentum of the sampled rows.
  virtual absl::Status Pass2(const UpdateParams& params) = 0;

  // ---- Queries on the batch, without change of state. Any batch set before is gone.

  // Scores the batch against `rows` as Pass1 does, without a numerator.
  virtual absl::Status Evaluate(const Head& head, absl::Span<const int64_t> rows,
                                std::vector<EvaluationPartial>* partials /* [B] */) = 0;
  // The k local rows with the highest cosine to each batch row, best first, equal cosines by class id;
  // padded with {-infinity, -1} where num_local < k.
  virtual absl::Status Nearest(int k, std::vector<Neighbour>* neighbours /* [B, k] */) = 0;
};

// From every shard's partials of one evaluation, [N, B] in rank order.
Evaluation CombineEvaluation(absl::Span<const EvaluationPartial> partials, int num_shards,
                             absl::Span<const int64_t> labels);

// Merges every shard's neighbours [N, B, k] into [B, k].
std::vector<Neighbour> MergeNeighbours(absl::Span<const Neighbour> neighbours, int num_shards, int num_rows,
                                       int k);

// What a CPU backend with this configuration will hold, without allocating.
MemoryNeed CpuMemoryNeed(const ShardConfig& config);
// INVALID_ARGUMENT for a configuration the device cannot do (bf16 on the CPU, say).
absl::StatusOr<std::unique_ptr<ShardBackend>> MakeCpuBackend(const ShardConfig& config);

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_SHARD_BACKEND_H_
