// Stable scalar pieces of the loss, in double, and the order of neighbours. Shared by every device.
#ifndef CCS_KERNELS_SOFTMAX_H_
#define CCS_KERNELS_SOFTMAX_H_

#include <cmath>
#include <limits>

#include "kernels/shard_backend.h"

namespace ccs::kernels {

// log(1 + exp d).
inline double Softplus(double d) { return (d > 0 ? d : 0.0) + std::log1p(std::exp(-std::abs(d))); }

// 1 / (1 + exp(-d)), with full relative precision where it is tiny.
inline double Sigmoid(double d) {
  const double e = std::exp(-std::abs(d));
  return (d > 0 ? 1.0 : e) / (1.0 + e);
}

// One row's partials of all shards, added in rank order.
class MergedSoftmax {
 public:
  void Add(const RowPartial& partial) {
    target_logit_ += partial.target_logit;
    if (!(partial.exp_sum > 0)) return;
    if (partial.max > max_) {
      sum_ = sum_ * std::exp(max_ - partial.max) + partial.exp_sum;
      max_ = partial.max;
    } else {
      sum_ += partial.exp_sum * std::exp(partial.max - max_);
    }
  }
  // log of the sum of exp over the other columns; -infinity if there are none.
  double log_sum() const { return sum_ > 0 ? max_ + std::log(sum_) : max_; }
  double target_logit() const { return target_logit_; }
  double Loss() const { return Softplus(log_sum() - target_logit_); }
  // sigma(d): how much of the row's probability is not its own class's.
  double WrongShare() const { return Sigmoid(log_sum() - target_logit_); }

 private:
  double max_ = -std::numeric_limits<double>::infinity();
  double sum_ = 0;
  double target_logit_ = 0;
};

// One row's gradient with respect to its logits, as a shard applies it: G_ij = other * exp(z_ij - reference).
struct GradientFactors {
  float reference = 0;  // about L
  float other = 0;
  float numerator = 0;  // of pass 1's numerator
  float target = 0;     // G_iy, if this shard owns the class
};

// All but the target's; `factor` is sigma(d) s / n.
inline GradientFactors FactorsOf(const MergedSoftmax& merged, const RowPartial& own, double factor) {
  GradientFactors factors;
  const double log_sum = merged.log_sum();
  if (std::isfinite(log_sum)) {
    factors.reference = static_cast<float>(log_sum);
    factors.other = static_cast<float>(std::exp(factors.reference - log_sum) * factor);
  }
  if (own.exp_sum > 0) factors.numerator = static_cast<float>(std::exp(own.max - log_sum) * factor);
  return factors;
}

// Higher cosine first, equal ones by class id; padding (-infinity, -1) last.
inline bool Nearer(const Neighbour& a, const Neighbour& b) {
  if (a.cosine != b.cosine) return a.cosine > b.cosine;
  return a.class_id >= 0 && (b.class_id < 0 || a.class_id < b.class_id);
}

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_SOFTMAX_H_
