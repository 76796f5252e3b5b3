// One training step in float64, plain and slow: the oracle for kernels and clusters. Every logit of every
// shard is formed; nothing is tiled, packed or kept from step to step.
#ifndef CCS_TESTS_TESTING_STEP_REFERENCE_H_
#define CCS_TESTS_TESTING_STEP_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ccs::testing {

struct ReferenceHead {
  double scale = 64;
  double m1 = 1;
  double m2 = 0;
  double m3 = 0;
  double filter_threshold = 1;
};

struct ReferenceShard {
  int64_t class_start = 0;
  int64_t num_local = 0;
  std::vector<double> weight;    // [num_local, dim]
  std::vector<double> momentum;  // [num_local, dim]
};

struct ReferenceUpdate {
  double learning_rate = 0;
  double momentum = 0.9;
  double weight_decay = 5e-4;
};

struct ReferenceResult {
  double loss = 0;               // averaged over labelled rows
  std::vector<double> gradient;  // [B, dim] of that loss with respect to the features
};

// Takes one step over all shards in place. `sampled[k]` holds shard k's local rows, sorted, with every row
// that is some label's class; `features` is [B, dim] for the B labels, -1 unlabelled.
ReferenceResult ReferenceStep(std::vector<ReferenceShard>* shards,
                              const std::vector<std::vector<int64_t>>& sampled,
                              absl::Span<const double> features, absl::Span<const int64_t> labels, int dim,
                              const ReferenceHead& head, const ReferenceUpdate& update,
                              bool normalise_features);

// The even split of the classes over shards, weights and momentum zero.
std::vector<ReferenceShard> EmptyReferenceShards(int64_t num_classes, int num_shards, int dim);

// |got - want| / |want| as wholes; |got| where want is all zero.
double RelativeError(absl::Span<const double> got, absl::Span<const double> want);
double RelativeError(absl::Span<const float> got, absl::Span<const double> want);

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_STEP_REFERENCE_H_
