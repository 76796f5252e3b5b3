#include "tests/kernels/step_agreement.h"

#include <cmath>

#include "kernels/sampling.h"

namespace ccs::kernels {

std::vector<float> RandomFeatures(int64_t batch, int dim, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> features(batch * dim);
  for (float& value : features) value = normal(random);
  return features;
}

void MakeUnit(std::vector<float>* rows, int dim) {
  for (size_t at = 0; at < rows->size(); at += dim) {
    double square = 0;
    for (int d = 0; d < dim; ++d) square += static_cast<double>((*rows)[at + d]) * (*rows)[at + d];
    for (int d = 0; d < dim; ++d) (*rows)[at + d] = static_cast<float>((*rows)[at + d] / std::sqrt(square));
  }
}

SampledRows Sample(BackendCluster& cluster, absl::Span<const int64_t> labels, double rate, int64_t step) {
  SampledRows sampled;
  for (int rank = 0; rank < cluster.num_shards(); ++rank) {
    const ShardConfig& config = cluster.shard(rank).config();
    Sampler sampler(config.num_local, rate, config.seed, rank);
    const auto rows = sampler.Draw(step, LocalPositives(labels, config.class_start, config.num_local));
    sampled.emplace_back(rows.begin(), rows.end());
  }
  return sampled;
}

void ExpectStepAgrees(BackendCluster& cluster, absl::Span<const float> features,
                      absl::Span<const int64_t> labels, const SampledRows& sampled, const Head& head,
                      const Tolerance& tolerance, const UpdateParams& update) {
  auto reference = cluster.ToReference();
  const int dim = cluster.shard(0).config().dim;
  const auto got = cluster.Step(features, labels, sampled, head, update);
  ASSERT_TRUE(got.ok()) << got.status();
  const auto want =
      testing::ReferenceStep(&reference, sampled, ToDouble(features), labels, dim, ToReference(head),
                             {update.learning_rate, update.momentum, update.weight_decay},
                             cluster.shard(0).config().normalise_features);
  EXPECT_NEAR(got->loss, want.loss, tolerance.whole * want.loss);
  ExpectClose("gradient", got->gradient, want.gradient, dim, tolerance);
  for (int rank = 0; rank < cluster.num_shards(); ++rank) {
    ExpectClose("weight", cluster.Weight(rank), reference[rank].weight, dim, tolerance);
    ExpectClose("momentum", cluster.Momentum(rank), reference[rank].momentum, dim, tolerance);
  }
}

std::vector<int64_t> RandomLabels(int64_t batch, int64_t classes, std::mt19937_64& random) {
  std::vector<int64_t> labels(batch);
  for (int64_t& label : labels) label = static_cast<int64_t>(random() % (classes + 1)) - 1;
  return labels;
}

std::vector<float> TrainedFeatures(const std::vector<float>& centres, absl::Span<const int64_t> labels,
                                   int dim, absl::Span<const double> cosines, std::mt19937_64& random) {
  std::vector<float> noise = RandomFeatures(static_cast<int64_t>(labels.size()), dim, random);
  std::vector<float> features(noise.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    const float* centre = &centres[labels[i] * dim];
    float* row = &noise[i * dim];
    double along = 0, square = 0, rest = 0;
    for (int d = 0; d < dim; ++d) along += row[d] * centre[d], square += centre[d] * centre[d];
    for (int d = 0; d < dim; ++d) {
      row[d] -= static_cast<float>(along / square * centre[d]);
      rest += row[d] * row[d];
    }
    const double cosine = cosines[i % cosines.size()];
    for (int d = 0; d < dim; ++d) {
      features[i * dim + d] = static_cast<float>(cosine * centre[d] / std::sqrt(square) +
                                                 std::sqrt(1 - cosine * cosine) * row[d] / std::sqrt(rest));
    }
  }
  return features;
}

}  // namespace ccs::kernels
