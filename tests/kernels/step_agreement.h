// Whole steps of several backends against the float64 reference.
#ifndef CCS_TESTS_KERNELS_STEP_AGREEMENT_H_
#define CCS_TESTS_KERNELS_STEP_AGREEMENT_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "tests/kernels/backend_cluster.h"
#include "tests/kernels/expect_close.h"

namespace ccs::kernels {

inline constexpr UpdateParams kUpdate{.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 5e-4f};
inline constexpr Head kNormface{};
inline constexpr Head kCosface{.margin = {.m3 = 0.4f}};
inline constexpr Head kArcface{.margin = {.m2 = 0.5f}};
inline constexpr Head kCombined{.scale = 30, .margin = {1.1f, 0.2f, 0.1f}};

std::vector<float> RandomFeatures(int64_t batch, int dim, std::mt19937_64& random);

// Divides every row by its norm.
void MakeUnit(std::vector<float>* rows, int dim);

// Of [-1, classes).
std::vector<int64_t> RandomLabels(int64_t batch, int64_t classes, std::mt19937_64& random);

// Rows at a cosine to their own centre, as late in training: cosines[i % size] for row i.
std::vector<float> TrainedFeatures(const std::vector<float>& centres, absl::Span<const int64_t> labels,
                                   int dim, absl::Span<const double> cosines, std::mt19937_64& random);

// What each shard's sampler draws.
SampledRows Sample(BackendCluster& cluster, absl::Span<const int64_t> labels, double rate, int64_t step);

// Takes one step on the cluster and on the reference and compares everything.
void ExpectStepAgrees(BackendCluster& cluster, absl::Span<const float> features,
                      absl::Span<const int64_t> labels, const SampledRows& sampled, const Head& head,
                      const Tolerance& tolerance = {}, const UpdateParams& update = kUpdate);

}  // namespace ccs::kernels

#endif  // CCS_TESTS_KERNELS_STEP_AGREEMENT_H_
