#include "tests/testing/step_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ccs::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMinNorm = 1e-12;
constexpr double kMinSine = 1e-4;

using Row = absl::Span<const double>;

double Dot(Row a, Row b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> Unit(Row row) {
  const double norm = std::max(std::sqrt(Dot(row, row)), kMinNorm);
  std::vector<double> unit(row.begin(), row.end());
  for (double& value : unit) value /= norm;
  return unit;
}

// From the gradient with respect to a unit row to that with respect to the row; 0 for zero rows.
std::vector<double> ThroughNorm(Row unit_gradient, Row row) {
  std::vector<double> gradient(row.size(), 0.0);
  const double norm = std::sqrt(Dot(row, row));
  if (norm <= kMinNorm) return gradient;
  const std::vector<double> unit = Unit(row);
  const double radial = Dot(unit_gradient, unit);
  for (size_t i = 0; i < row.size(); ++i) gradient[i] = (unit_gradient[i] - radial * unit[i]) / norm;
  return gradient;
}

double Softplus(double d) { return std::max(d, 0.0) + std::log1p(std::exp(-std::abs(d))); }
double Sigmoid(double d) { return d > 0 ? 1 / (1 + std::exp(-d)) : std::exp(d) / (1 + std::exp(d)); }

struct Margined {
  double value;
  double slope;
};

Margined ApplyMargin(const ReferenceHead& head, double cosine) {
  if (head.m1 == 1 && head.m2 == 0) return {cosine - head.m3, 1};
  const double theta = std::acos(std::clamp(cosine, -1.0, 1.0));
  const double phi = head.m1 * theta + head.m2;
  return {std::cos(phi) - head.m3, head.m1 * std::sin(phi) / std::max(std::sin(theta), kMinSine)};
}

class Step {
 public:
  Step(std::vector<ReferenceShard>* shards, const std::vector<std::vector<int64_t>>& sampled, Row features,
       absl::Span<const int64_t> labels, int dim, const ReferenceHead& head, bool normalise)
      : shards_(*shards),
        sampled_(sampled),
        features_(features),
        labels_(labels),
        dim_(dim),
        head_(head),
        normalise_(normalise),
        filter_(normalise && head.filter_threshold >= 1 ? kInfinity : head.filter_threshold) {}

  ReferenceResult Run(const ReferenceUpdate& update) {
    ReferenceResult result;
    FormUnits();
    FormLogits();
    result.loss = FormLoss();
    FormGradients();
    for (size_t i = 0; i < labels_.size(); ++i) {
      const std::vector<double> row =
          normalise_ ? ThroughNorm(unit_feature_gradients_[i], Feature(i)) : unit_feature_gradients_[i];
      result.gradient.insert(result.gradient.end(), row.begin(), row.end());
    }
    for (size_t k = 0; k < shards_.size(); ++k) Update(k, update);
    return result;
  }

 private:
  Row Feature(size_t i) const { return features_.subspan(i * dim_, dim_); }
  Row Weight(size_t k, int64_t row) const { return Row(shards_[k].weight).subspan(row * dim_, dim_); }
  bool IsTarget(size_t i, size_t k, size_t j) const {
    return labels_[i] >= 0 && labels_[i] == shards_[k].class_start + sampled_[k][j];
  }

  void FormUnits() {
    for (size_t i = 0; i < labels_.size(); ++i) {
      units_.push_back(normalise_ ? Unit(Feature(i))
                                  : std::vector<double>(Feature(i).begin(), Feature(i).end()));
    }
    centres_.resize(shards_.size());
    for (size_t k = 0; k < shards_.size(); ++k) {
      for (int64_t row : sampled_[k]) centres_[k].push_back(Unit(Weight(k, row)));
    }
  }

  // logits_[k][i][j]; the target column is -infinity there and has its own logit and slope.
  void FormLogits() {
    logits_.resize(shards_.size());
    cosines_.resize(shards_.size());
    targets_.assign(labels_.size(), {0, 0});
    for (size_t k = 0; k < shards_.size(); ++k) {
      for (size_t i = 0; i < labels_.size(); ++i) {
        std::vector<double> row;
        std::vector<double> cosines;
        for (size_t j = 0; j < sampled_[k].size(); ++j) {
          const double cosine = Dot(units_[i], centres_[k][j]);
          cosines.push_back(cosine);
          row.push_back(cosine > filter_ ? 0 : head_.scale * cosine);
          if (!IsTarget(i, k, j)) continue;
          row.back() = -kInfinity;
          targets_[i] = ApplyMargin(head_, cosine);
        }
        logits_[k].push_back(row);
        cosines_[k].push_back(cosines);
      }
    }
  }

  double FormLoss() {
    double loss = 0;
    int labelled = 0;
    for (size_t i = 0; i < labels_.size(); ++i) {
      double top = -kInfinity;
      for (const auto& shard : logits_) {
        for (double z : shard[i]) top = std::max(top, z);
      }
      double sum = 0;
      for (const auto& shard : logits_) {
        for (double z : shard[i]) sum += z > -kInfinity ? std::exp(z - top) : 0;
      }
      log_sums_.push_back(sum > 0 ? top + std::log(sum) : -kInfinity);
      if (labels_[i] < 0) continue;
      ++labelled;
      loss += Softplus(log_sums_[i] - head_.scale * targets_[i].value);
    }
    count_ = std::max(labelled, 1);
    return loss / count_;
  }

  double LogitGradient(size_t i, size_t k, size_t j) const {
    if (labels_[i] < 0) return 0;
    const double wrong = Sigmoid(log_sums_[i] - head_.scale * targets_[i].value) * head_.scale / count_;
    if (IsTarget(i, k, j)) return -wrong * targets_[i].slope;
    return cosines_[k][i][j] > filter_ ? 0 : std::exp(logits_[k][i][j] - log_sums_[i]) * wrong;
  }

  void FormGradients() {
    unit_feature_gradients_.assign(labels_.size(), std::vector<double>(dim_, 0.0));
    centre_gradients_.resize(shards_.size());
    for (size_t k = 0; k < shards_.size(); ++k) {
      centre_gradients_[k].assign(sampled_[k].size(), std::vector<double>(dim_, 0.0));
      for (size_t j = 0; j < sampled_[k].size(); ++j) {
        for (size_t i = 0; i < labels_.size(); ++i) {
          const double g = LogitGradient(i, k, j);
          for (int d = 0; d < dim_; ++d) {
            unit_feature_gradients_[i][d] += g * centres_[k][j][d];
            centre_gradients_[k][j][d] += g * units_[i][d];
          }
        }
      }
    }
  }

  void Update(size_t k, const ReferenceUpdate& update) {
    for (size_t j = 0; j < sampled_[k].size(); ++j) {
      const int64_t at = sampled_[k][j] * dim_;
      const std::vector<double> gradient = ThroughNorm(centre_gradients_[k][j], Weight(k, sampled_[k][j]));
      for (int d = 0; d < dim_; ++d) {
        double& w = shards_[k].weight[at + d];
        double& v = shards_[k].momentum[at + d];
        v = update.momentum * v + gradient[d] + update.weight_decay * w;
        w -= update.learning_rate * v;
      }
    }
  }

  std::vector<ReferenceShard>& shards_;
  const std::vector<std::vector<int64_t>>& sampled_;
  Row features_;
  absl::Span<const int64_t> labels_;
  int dim_;
  ReferenceHead head_;
  bool normalise_;
  double filter_;

  std::vector<std::vector<double>> units_;                 // [B][dim]
  std::vector<std::vector<std::vector<double>>> centres_;  // [N][n][dim]
  std::vector<std::vector<std::vector<double>>> cosines_;  // [N][B][n]
  std::vector<std::vector<std::vector<double>>> logits_;   // [N][B][n]
  std::vector<Margined> targets_;                          // [B]
  std::vector<double> log_sums_;                           // [B]
  int count_ = 1;
  std::vector<std::vector<double>> unit_feature_gradients_;         // [B][dim]
  std::vector<std::vector<std::vector<double>>> centre_gradients_;  // [N][n][dim]
};

template <typename T>
double RelativeErrorOf(absl::Span<const T> got, absl::Span<const double> want) {
  if (got.size() != want.size()) return kInfinity;
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - want[i];
    error += difference * difference;
    size += want[i] * want[i];
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

}  // namespace

ReferenceResult ReferenceStep(std::vector<ReferenceShard>* shards,
                              const std::vector<std::vector<int64_t>>& sampled,
                              absl::Span<const double> features, absl::Span<const int64_t> labels, int dim,
                              const ReferenceHead& head, const ReferenceUpdate& update,
                              bool normalise_features) {
  return Step(shards, sampled, features, labels, dim, head, normalise_features).Run(update);
}

std::vector<ReferenceShard> EmptyReferenceShards(int64_t num_classes, int num_shards, int dim) {
  std::vector<ReferenceShard> shards(num_shards);
  for (int64_t rank = 0; rank < num_shards; ++rank) {
    ReferenceShard& shard = shards[rank];
    shard.num_local = num_classes / num_shards + (rank < num_classes % num_shards ? 1 : 0);
    shard.class_start = num_classes / num_shards * rank + std::min(rank, num_classes % num_shards);
    shard.weight.assign(shard.num_local * dim, 0.0);
    shard.momentum.assign(shard.num_local * dim, 0.0);
  }
  return shards;
}

double RelativeError(absl::Span<const double> got, absl::Span<const double> want) {
  return RelativeErrorOf(got, want);
}

double RelativeError(absl::Span<const float> got, absl::Span<const double> want) {
  return RelativeErrorOf(got, want);
}

}  // namespace ccs::testing
