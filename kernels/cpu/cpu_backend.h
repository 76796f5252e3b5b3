// A shard's arithmetic on the processor.
#ifndef CCS_KERNELS_CPU_CPU_BACKEND_H_
#define CCS_KERNELS_CPU_CPU_BACKEND_H_

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/arena.h"
#include "kernels/cpu/layout.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/tiles.h"
#include "kernels/shard_backend.h"

namespace ccs::kernels {

// See ShardBackend for the contract and README.md for the mathematics. Rows and batch are in
// cpu_backend.cc, each pass in the file of its name.
class CpuBackend final : public ShardBackend {
 public:
  // The configuration must be valid. Throws std::bad_alloc or std::system_error (no more threads).
  explicit CpuBackend(const ShardConfig& config);

  const ShardConfig& config() const override { return config_; }
  MemoryNeed memory() const override { return {state_.bytes(), workspace_.bytes()}; }
  std::string device_name() const override;

  absl::Status InitialiseRows() override;
  absl::Status ReadRows(int64_t first_row, int64_t num_rows, float* weight, float* momentum) const override;
  absl::Status WriteRows(int64_t first_row, int64_t num_rows, const float* weight,
                         const float* momentum) override;

  float* features() override { return memory_.features; }
  absl::Status SetBatch(absl::Span<const int64_t> labels) override;

  absl::Status Pass1(const Head& head, absl::Span<const int64_t> sampled_rows) override;
  const RowPartial* partials() const override { return memory_.partials; }
  RowPartial* gathered_partials() override { return memory_.gathered; }
  absl::StatusOr<double> Combine() override;
  float* gradient_sum() override { return memory_.numerator; }
  absl::Status FinishFeatureGradient(int first_row, int num_rows, float* gradient) override;
  absl::Status Pass2(const UpdateParams& params) override;

  absl::Status Evaluate(const Head& head, absl::Span<const int64_t> rows,
                        std::vector<EvaluationPartial>* partials) override;
  absl::Status Nearest(int k, std::vector<Neighbour>* neighbours) override;

 private:
  enum class Phase { kNothing, kBatch, kScored, kCombined };

  absl::Status CheckPhase(Phase needed) const;
  // Checks head and rows, takes them for the queries and passes to come, finds every label's column and
  // computes its logit.
  absl::Status SetTargets(const Head& head, absl::Span<const int64_t> rows);
  absl::Status FindTarget(int batch_row, absl::Span<const int64_t> rows);
  const float* UnitFeatures(int batch_row) const {
    return memory_.features + int64_t{batch_row} * config_.dim;
  }
  const float* Weight(int64_t local_row) const { return memory_.weight + local_row * config_.dim; }
  double Cosine(int batch_row, int64_t local_row) const;

  // Cosines of a chunk with a tile, [chunk.rows, tile.columns], rows kTileStride apart.
  absl::Status Score(const Chunk& chunk, const Tile& tile, const float* unit_rows, float* cosines) const;
  // Score with -infinity in the target columns.
  absl::Status ScoreOthers(const Chunk& chunk, const Tile& tile, const float* unit_rows,
                           float* cosines) const;
  // Computes weights[j] = factor * exp(z_j - reference) again from a cosine in double wherever it is above
  // `large`, and returns by how much the weights grew. Long sums in single precision put 3e-6 of error into
  // a logit at scale 64; in the few columns with a large share of a row's softmax it would show.
  double RefineWeights(int batch_row, const Tile& tile, double reference, double factor, float large,
                       float* weights) const;
  int64_t num_kept_tiles() const {
    return memory_.kept_floats / (int64_t{std::max(batch_, 1)} * kTileStride);
  }
  float* KeptCosines(const Chunk& chunk, const Tile& tile) const {
    return memory_.kept + (tile.index * batch_ + chunk.first) * kTileStride;
  }

  absl::Status AddToNumerator(const Chunk& chunk, const Tile& tile, const float* unit_rows, int worker);
  double SetGradientFactors(int batch_row);
  void ScaleNumerator(int batch_row);
  absl::Status UnitGradient(const Tile& tile, const Scratch& scratch);
  void FindNearer(int batch_row, const RowSet& set, const Tile& tile, const float* cosines, int k,
                  Neighbour* nearest) const;

  ShardConfig config_;
  Arena state_{Arena::Mode::kAllocate};
  Arena workspace_{Arena::Mode::kAllocate};
  Layout memory_;
  ThreadPool pool_;

  Phase phase_ = Phase::kNothing;
  int batch_ = 0;  // rows
  int labelled_ = 0;
  Head head_;
  LogitRule rule_;
  RowSet sampled_;
};

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CPU_CPU_BACKEND_H_
