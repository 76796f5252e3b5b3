// The margin softmax head: how a row's own cosine becomes its target logit.
#ifndef CCS_KERNELS_HEAD_H_
#define CCS_KERNELS_HEAD_H_

#include <algorithm>
#include <cmath>
#include <limits>

namespace ccs::kernels {

// psi(c) = cos(m1 * arccos c + m2) - m3. (1, 0, 0) is normface, m3 alone cosface (Wang et al., 2018,
// arXiv:1801.09414), m2 alone arcface (Deng et al., 2019, arXiv:1801.07698), all three the combined margin.
struct Margin {
  float m1 = 1.0f;
  float m2 = 0.0f;  // radians
  float m3 = 0.0f;

  // An arccos is only defined for cosines, so these margins need unit features.
  bool needs_arccos() const { return m1 != 1.0f || m2 != 0.0f; }
  friend bool operator==(const Margin&, const Margin&) = default;
};

struct Head {
  float scale = 64.0f;
  Margin margin;
  // A non-target cosine above this becomes logit 0: it counts in the exp-sum and has no gradient.
  float filter_threshold = 1.0f;
};

// How cosines become logits: z = scale * c, but 0 where c > filter.
struct LogitRule {
  float scale = 1.0f;
  float filter = std::numeric_limits<float>::infinity();
};

// By rounding a cosine may exceed 1, which must not cost it its logit: on unit features 1 and more is no
// filter.
inline LogitRule LogitRuleOf(const Head& head, bool unit_features) {
  const bool filters = head.filter_threshold < 1 || !unit_features;
  return {head.scale, filters ? head.filter_threshold : std::numeric_limits<float>::infinity()};
}

// Shorter vectors count as zero.
inline constexpr double kMinNorm = 1e-12;

// A share of a row's softmax above which a column's cosine is computed again in double (see README.md). At
// most 1 / kLargeShare columns have it.
inline constexpr double kLargeShare = 1.0 / 64;

struct MarginedCosine {
  double value;  // psi(c)
  double slope;  // d psi / d c
};

// Floor of sin(arccos c) in the slope, which is unbounded at c = +-1.
inline constexpr double kMinSine = 1e-4;

inline MarginedCosine ApplyMargin(const Margin& margin, double cosine) {
  if (!margin.needs_arccos()) return {cosine - margin.m3, 1.0};
  const double theta = std::acos(std::clamp(cosine, -1.0, 1.0));
  const double phi = margin.m1 * theta + margin.m2;
  return {std::cos(phi) - margin.m3, margin.m1 * std::sin(phi) / std::max(std::sin(theta), kMinSine)};
}

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_HEAD_H_
