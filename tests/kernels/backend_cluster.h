// Several shard backends in one process, with the collectives done by hand in rank order.
#ifndef CCS_TESTS_KERNELS_BACKEND_CLUSTER_H_
#define CCS_TESTS_KERNELS_BACKEND_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/shard_backend.h"
#include "tests/testing/step_reference.h"

namespace ccs::kernels {

struct ClusterSpec {
  int64_t num_classes = 0;
  int num_shards = 1;
  int dim = 0;
  bool normalise_features = true;
  Precision precision = Precision::kFp32;
  int threads = 1;
  int64_t kept_logits_bytes = int64_t{1} << 20;
  int max_batch = 512;
  uint64_t seed = 1;
};

using SampledRows = std::vector<std::vector<int64_t>>;  // [num_shards], local

class BackendCluster {
 public:
  explicit BackendCluster(const ClusterSpec& spec);

  struct StepResult {
    double loss = 0;
    std::vector<float> gradient;  // [B, dim]
  };
  absl::StatusOr<StepResult> Step(absl::Span<const float> features, absl::Span<const int64_t> labels,
                                  const SampledRows& sampled, const Head& head, const UpdateParams& update);
  // Fills every shard's batch, for queries.
  absl::Status SetBatch(absl::Span<const float> features, absl::Span<const int64_t> labels);

  int num_shards() const { return static_cast<int>(shards_.size()); }
  ShardBackend& shard(int rank) { return *shards_[rank]; }
  std::vector<float> Weight(int rank) const;
  std::vector<float> Momentum(int rank) const;
  // Every row of every shard.
  SampledRows AllRows() const;
  // The state as the reference wants it.
  std::vector<testing::ReferenceShard> ToReference() const;

 private:
  int dim_;
  std::vector<std::unique_ptr<ShardBackend>> shards_;
};

// As float64, and as the reference's head.
std::vector<double> ToDouble(absl::Span<const float> values);
testing::ReferenceHead ToReference(const Head& head);

}  // namespace ccs::kernels

#endif  // CCS_TESTS_KERNELS_BACKEND_CLUSTER_H_
