// A shard's arithmetic on a GPU.
#ifndef CCS_KERNELS_CUDA_CUDA_BACKEND_H_
#define CCS_KERNELS_CUDA_CUDA_BACKEND_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/stream.h"
#include "kernels/shard_backend.h"

namespace ccs::kernels::cuda {

// A device as far as a shard cares.
struct Device {
  int index = 0;
  std::string name;  // for people
  int64_t l2_bytes = 0;
};

// See ShardBackend for the contract and README.md for the mathematics. All work of a call is queued on one
// stream and awaited before the call returns. ReadRows has a stream of its own, for the thread that calls it
// during a step. Rows and batch are in cuda_backend.cc, the passes in step.cc, queries in queries.cc.
class CudaBackend final : public ShardBackend {
 public:
  // The configuration must be valid for the device, and the device the calling thread's.
  static absl::StatusOr<std::unique_ptr<ShardBackend>> Make(const ShardConfig& config, const Device& device);

  const ShardConfig& config() const override { return config_; }
  MemoryNeed memory() const override { return {state_.bytes(), workspace_.bytes()}; }
  std::string device_name() const override { return device_.name; }

  absl::Status InitialiseRows() override;
  absl::Status ReadRows(int64_t first_row, int64_t num_rows, float* weight, float* momentum) const override;
  absl::Status WriteRows(int64_t first_row, int64_t num_rows, const float* weight,
                         const float* momentum) override;

  float* features() override { return memory_.host_features; }
  absl::Status SetBatch(absl::Span<const int64_t> labels) override;

  absl::Status Pass1(const Head& head, absl::Span<const int64_t> sampled_rows) override;
  const RowPartial* partials() const override { return partials_.data(); }
  RowPartial* gathered_partials() override { return gathered_.data(); }
  absl::StatusOr<double> Combine() override;
  float* gradient_sum() override { return memory_.host_gradient_sum; }
  absl::Status FinishFeatureGradient(int first_row, int num_rows, float* gradient) override;
  absl::Status Pass2(const UpdateParams& params) override;

  absl::Status Evaluate(const Head& head, absl::Span<const int64_t> rows,
                        std::vector<EvaluationPartial>* partials) override;
  absl::Status Nearest(int k, std::vector<Neighbour>* neighbours) override;

 private:
  enum class Phase { kNothing, kBatch, kScored, kCombined };

  CudaBackend(const ShardConfig& config, const Device& device);

  // Makes the device the calling thread's and checks that the step has come as far as `needed`.
  absl::Status Enter(Phase needed) const;
  Batch DeviceBatch() const { return {memory_.features, memory_.norms, batch_, config_.dim}; }

  // Checks head and sample and takes them to the device, with every label's column.
  absl::Status SetTargets(const Head& head, absl::Span<const int64_t> rows);
  void SetSample(absl::Span<const int64_t> rows);
  // From the own cosines that came back: the target logits.
  void TakeTargetCosines(const Head& head);
  void StartSoftmax();

  // Calls visit for every tile of the sample.
  void ForTiles(const std::function<void(const Tile&)>& visit);
  bool IsKept(const Tile& tile) const;
  float* Cosines(const Tile& tile) const;
  // Gathers a tile's unit rows and their cosines with the batch.
  void Score(const Tile& tile);
  ScoredTile Scored(const Tile& tile) const;
  Factor FeatureFactor() const;
  Factor UnitRowFactor() const { return {memory_.unit_rows, memory_.unit_stride}; }

  double SetGradientFactors(int batch_row);

  ShardConfig config_;
  Device device_;
  Memory state_{MemoryKind::kDevice};
  Memory workspace_{MemoryKind::kDevice};
  Memory pinned_{MemoryKind::kPinned};
  Layout memory_;
  mutable Stream stream_;
  mutable Staging staging_;
  mutable std::mutex read_mutex_;
  mutable Stream read_stream_;  // guarded by read_mutex_, like its staging
  mutable Staging read_staging_;
  Products products_;

  Phase phase_ = Phase::kNothing;
  int batch_ = 0;  // rows
  int labelled_ = 0;
  Head head_;
  LogitRule rule_;
  Rows rows_;
  int64_t sampled_ = 0;  // rows of the sample
  std::vector<int64_t> labels_;
  std::vector<double> target_slopes_;  // [max_batch]
  std::vector<RowPartial> partials_;   // [max_batch]
  std::vector<RowPartial> gathered_;   // [num_shards, max_batch]
};

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_CUDA_BACKEND_H_
