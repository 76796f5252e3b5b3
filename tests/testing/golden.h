// The golden cases of tests/golden: steps of an independent implementation, recorded.
#ifndef CCS_TESTS_TESTING_GOLDEN_H_
#define CCS_TESTS_TESTING_GOLDEN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/step_reference.h"

namespace ccs::testing {

// One shard's part of one step. In these cases every shard is also a trainer with its own slice of the batch.
struct GoldenShardStep {
  std::vector<float> features;      // [batch_per_trainer, dim]
  std::vector<int64_t> labels;      // [batch_per_trainer]
  std::vector<int64_t> sampled;     // local rows, sorted
  std::vector<float> feature_grad;  // [batch_per_trainer, dim], times num_shards
  std::vector<float> weight;        // [num_local, dim] after the step
  std::vector<float> momentum;      // [num_local, dim] after the step
};

struct GoldenStep {
  float learning_rate = 0;
  double loss = 0;
  std::vector<GoldenShardStep> shards;  // [num_shards]
};

struct GoldenCase {
  std::string name;
  int num_shards = 0;
  int64_t num_classes = 0;
  int dim = 0;
  int batch_per_trainer = 0;
  double sample_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  ReferenceHead head;                             // features are used as given: normalise_features is false
  std::vector<int64_t> class_start;               // [num_shards]
  std::vector<int64_t> num_local;                 // [num_shards]
  std::vector<std::vector<float>> first_weights;  // [num_shards][num_local, dim]; momentum starts at zero
  std::vector<GoldenStep> steps;
};

// Names of all cases, sorted.
std::vector<std::string> GoldenCaseNames();
// Throws std::runtime_error if the case cannot be read.
GoldenCase LoadGoldenCase(const std::string& name);

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_GOLDEN_H_
