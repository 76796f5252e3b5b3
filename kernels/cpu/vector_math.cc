#include "kernels/cpu/vector_math.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector_math.cc"
#include "hwy/foreach_target.h"
// The order of these two matters: foreach_target re-includes this file for each target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ccs::kernels {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using F64 = hn::ScalableTag<double>;
using VecF = hn::Vec<F32>;
using VecD = hn::Vec<F64>;

// exp of less than this is no normal float.
constexpr float kLowestExponent = -87.0f;
constexpr float kNone = -std::numeric_limits<float>::infinity();

int Width() { return static_cast<int>(hn::Lanes(F32())); }

// The last `count` < Width() values, the other lanes being `fill`.
VecF LoadTail(const float* a, int count, float fill) {
  HWY_ALIGN float lanes[hn::MaxLanes(F32())];
  std::fill(std::copy_n(a, count, lanes), lanes + Width(), fill);
  return hn::Load(F32(), lanes);
}

void StoreTail(VecF v, int count, float* out) {
  HWY_ALIGN float lanes[hn::MaxLanes(F32())];
  hn::Store(v, F32(), lanes);
  std::copy_n(lanes, count, out);
}

// Adds float vectors and products of them in double.
class DoubleSum {
 public:
  // Written out: an implicit constructor would not be compiled for the target.
  DoubleSum() : low_(hn::Zero(F64())), high_(hn::Zero(F64())) {}
  void Add(VecF v) {
    low_ = hn::Add(low_, Low(v));
    high_ = hn::Add(high_, High(v));
  }
  void AddProduct(VecF a, VecF b) {
    low_ = hn::MulAdd(Low(a), Low(b), low_);
    high_ = hn::MulAdd(High(a), High(b), high_);
  }
  double Total() const { return hn::GetLane(hn::SumOfLanes(F64(), hn::Add(low_, high_))); }

 private:
#if HWY_TARGET == HWY_SCALAR  // a single lane has no halves
  static VecD Low(VecF v) { return hn::PromoteTo(F64(), v); }
  static VecD High(VecF) { return hn::Zero(F64()); }
#else
  static VecD Low(VecF v) { return hn::PromoteTo(F64(), hn::LowerHalf(v)); }
  static VecD High(VecF v) { return hn::PromoteTo(F64(), hn::UpperHalf(hn::Half<F32>(), v)); }
#endif
  VecD low_;
  VecD high_;
};

double DotRows(const float* a, const float* b, int length) {
  const int width = Width();
  DoubleSum even;
  DoubleSum odd;
  int i = 0;
  for (; i + 2 * width <= length; i += 2 * width) {
    even.AddProduct(hn::LoadU(F32(), a + i), hn::LoadU(F32(), b + i));
    odd.AddProduct(hn::LoadU(F32(), a + i + width), hn::LoadU(F32(), b + i + width));
  }
  for (; i + width <= length; i += width) even.AddProduct(hn::LoadU(F32(), a + i), hn::LoadU(F32(), b + i));
  if (i < length) odd.AddProduct(LoadTail(a + i, length - i, 0), LoadTail(b + i, length - i, 0));
  return even.Total() + odd.Total();
}

void ScaleRow(const float* a, float factor, int length, float* out) {
  const VecF f = hn::Set(F32(), factor);
  const int width = Width();
  int i = 0;
  for (; i + width <= length; i += width) hn::StoreU(hn::Mul(f, hn::LoadU(F32(), a + i)), F32(), out + i);
  if (i < length) StoreTail(hn::Mul(f, LoadTail(a + i, length - i, 0)), length - i, out + i);
}

void AddScaledRow(const float* a, float factor, int length, float* out) {
  const VecF f = hn::Set(F32(), factor);
  const int width = Width();
  int i = 0;
  for (; i + width <= length; i += width) {
    hn::StoreU(hn::MulAdd(f, hn::LoadU(F32(), a + i), hn::LoadU(F32(), out + i)), F32(), out + i);
  }
  if (i < length) {
    const int rest = length - i;
    StoreTail(hn::MulAdd(f, LoadTail(a + i, rest, 0), LoadTail(out + i, rest, 0)), rest, out + i);
  }
}

float MaxOfRow(const float* a, int length) {
  const int width = Width();
  VecF max0 = hn::Set(F32(), kNone);
  VecF max1 = max0;
  int i = 0;
  for (; i + 2 * width <= length; i += 2 * width) {
    max0 = hn::Max(max0, hn::LoadU(F32(), a + i));
    max1 = hn::Max(max1, hn::LoadU(F32(), a + i + width));
  }
  for (; i + width <= length; i += width) max0 = hn::Max(max0, hn::LoadU(F32(), a + i));
  if (i < length) max1 = hn::Max(max1, LoadTail(a + i, length - i, kNone));
  return hn::GetLane(hn::MaxOfLanes(F32(), hn::Max(max0, max1)));
}

// The largest logit of a row.
float MaxLogit(const float* cosines, int length, const LogitRule& rule) {
  const float max = MaxOfRow(cosines, length);
  if (!(max > rule.filter)) return rule.scale * max;
  float passing = 0.0f;  // the filtered column's own logit
  for (int i = 0; i < length; ++i) {
    passing = std::max(passing, cosines[i] > rule.filter ? kNone : rule.scale * cosines[i]);
  }
  return passing;
}

// exp(z - reference), and apart from it which columns pass the filter.
class Exponential {
 public:
  Exponential(const LogitRule& rule, float reference)
      : scale_(hn::Set(F32(), rule.scale)),
        filter_(hn::Set(F32(), rule.filter)),
        minus_reference_(hn::Set(F32(), -reference)) {}

  // One rounding only between the cosine and the exponent.
  VecF operator()(VecF cosine, hn::Mask<F32>* passes) const {
    *passes = hn::Le(cosine, filter_);
    const VecF exponent = hn::MulAdd(scale_, hn::IfThenElseZero(*passes, cosine), minus_reference_);
    return hn::IfThenElseZero(hn::Ge(exponent, hn::Set(F32(), kLowestExponent)), hn::Exp(F32(), exponent));
  }

 private:
  VecF scale_;
  VecF filter_;
  VecF minus_reference_;
};

TileWeights AddRowToSoftmax(const float* cosines, int length, const LogitRule& rule, RunningSoftmax* running,
                            float* weights) {
  const float earlier = running->max;
  running->max = std::max(earlier, MaxLogit(cosines, length, rule));
  if (std::isinf(running->max)) {  // no column yet
    std::fill_n(weights, length, 0.0f);
    return {1.0f, 0.0f};
  }
  const Exponential exponential(rule, running->max);
  const int width = Width();
  DoubleSum sum;
  VecF largest = hn::Zero(F32());
  const auto weigh = [&](VecF cosine) HWY_ATTR {
    hn::Mask<F32> passes;
    const VecF e = exponential(cosine, &passes);
    sum.Add(e);
    const VecF weight = hn::IfThenElseZero(passes, e);
    largest = hn::Max(largest, weight);
    return weight;
  };
  int i = 0;
  for (; i + width <= length; i += width)
    hn::StoreU(weigh(hn::LoadU(F32(), cosines + i)), F32(), weights + i);
  if (i < length) StoreTail(weigh(LoadTail(cosines + i, length - i, kNone)), length - i, weights + i);
  const float rescale = std::isinf(earlier) ? 0.0f : std::exp(earlier - running->max);
  running->exp_sum = running->exp_sum * rescale + sum.Total();
  return {rescale, hn::GetLane(hn::MaxOfLanes(F32(), largest))};
}

float ExpScaledRow(const float* cosines, int length, const LogitRule& rule, float reference, float factor,
                   float* out) {
  const Exponential exponential(rule, reference);
  const VecF f = hn::Set(F32(), factor);
  const int width = Width();
  VecF largest = hn::Zero(F32());
  const auto weigh = [&](VecF cosine) HWY_ATTR {
    hn::Mask<F32> passes;
    VecF e = exponential(cosine, &passes);
    e = hn::IfThenElseZero(passes, e);
    largest = hn::Max(largest, e);
    return hn::Mul(f, e);
  };
  int i = 0;
  for (; i + width <= length; i += width) hn::StoreU(weigh(hn::LoadU(F32(), cosines + i)), F32(), out + i);
  if (i < length) StoreTail(weigh(LoadTail(cosines + i, length - i, kNone)), length - i, out + i);
  return hn::GetLane(hn::MaxOfLanes(F32(), largest));
}

void UpdateOneRow(const float* unit_gradient, int dim, const RowUpdate& update, float* weight,
                  float* momentum) {
  const double norm = std::sqrt(DotRows(weight, weight, dim));
  double along = 0;   // factor of the gradient
  double radial = 0;  // factor of the weight: takes out the gradient's radial part
  if (norm > 1e-12) {
    along = 1 / norm;
    radial = DotRows(unit_gradient, weight, dim) * along * along * along;
  }
  const VecF gradient_factor = hn::Set(F32(), static_cast<float>(along));
  const VecF weight_factor = hn::Set(F32(), static_cast<float>(update.weight_decay - radial));
  const VecF keep = hn::Set(F32(), update.momentum);
  const VecF rate = hn::Set(F32(), update.learning_rate);
  const auto next_momentum = [&](VecF g, VecF w, VecF v) HWY_ATTR {
    return hn::MulAdd(keep, v, hn::MulAdd(gradient_factor, g, hn::Mul(weight_factor, w)));
  };
  const int width = Width();
  int i = 0;
  for (; i + width <= dim; i += width) {
    const VecF w = hn::LoadU(F32(), weight + i);
    const VecF v = next_momentum(hn::LoadU(F32(), unit_gradient + i), w, hn::LoadU(F32(), momentum + i));
    hn::StoreU(v, F32(), momentum + i);
    hn::StoreU(hn::NegMulAdd(rate, v, w), F32(), weight + i);
  }
  if (i < dim) {
    const int rest = dim - i;
    const VecF w = LoadTail(weight + i, rest, 0);
    const VecF v = next_momentum(LoadTail(unit_gradient + i, rest, 0), w, LoadTail(momentum + i, rest, 0));
    StoreTail(v, rest, momentum + i);
    StoreTail(hn::NegMulAdd(rate, v, w), rest, weight + i);
  }
}

std::string TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ccs::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ccs::kernels {

HWY_EXPORT(DotRows);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(AddScaledRow);
HWY_EXPORT(MaxOfRow);
HWY_EXPORT(AddRowToSoftmax);
HWY_EXPORT(ExpScaledRow);
HWY_EXPORT(UpdateOneRow);
HWY_EXPORT(TargetName);

double Dot(const float* a, const float* b, int length) { return HWY_DYNAMIC_DISPATCH(DotRows)(a, b, length); }

void Scale(const float* a, float factor, int length, float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleRow)(a, factor, length, out);
}

void AddScaled(const float* a, float factor, int length, float* out) {
  HWY_DYNAMIC_DISPATCH(AddScaledRow)(a, factor, length, out);
}

float MaxOf(const float* a, int length) { return HWY_DYNAMIC_DISPATCH(MaxOfRow)(a, length); }

TileWeights AddToSoftmax(const float* cosines, int length, const LogitRule& rule, RunningSoftmax* running,
                         float* weights) {
  return HWY_DYNAMIC_DISPATCH(AddRowToSoftmax)(cosines, length, rule, running, weights);
}

float ExpScaled(const float* cosines, int length, const LogitRule& rule, float reference, float factor,
                float* out) {
  return HWY_DYNAMIC_DISPATCH(ExpScaledRow)(cosines, length, rule, reference, factor, out);
}

void UpdateRow(const float* unit_gradient, int dim, const RowUpdate& update, float* weight, float* momentum) {
  HWY_DYNAMIC_DISPATCH(UpdateOneRow)(unit_gradient, dim, update, weight, momentum);
}

std::string VectorTarget() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace ccs::kernels
#endif  // HWY_ONCE
