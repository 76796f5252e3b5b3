// Vector code on single rows, compiled for several instruction sets and chosen at run time for the
// processor. No function keeps state; none allocates; pointers need no alignment. Lengths are >= 0.
#ifndef CCS_KERNELS_CPU_VECTOR_MATH_H_
#define CCS_KERNELS_CPU_VECTOR_MATH_H_

#include <cstdint>
#include <limits>
#include <string>

#include "kernels/head.h"

namespace ccs::kernels {

// Sums of exact products, added up in double.
double Dot(const float* a, const float* b, int length);

// out[i] = factor * a[i]; `out` may be `a`.
void Scale(const float* a, float factor, int length, float* out);

// out[i] += factor * a[i].
void AddScaled(const float* a, float factor, int length, float* out);

// -infinity if length is 0.
float MaxOf(const float* a, int length);

// A softmax over columns that arrive tile by tile.
struct RunningSoftmax {
  float max = -std::numeric_limits<float>::infinity();  // of z so far
  double exp_sum = 0;                                   // of exp(z - max) so far
};

struct TileWeights {
  float rescale;  // what sums weighted by earlier tiles' weights must be multiplied by
  float largest;  // of the weights
};

// Takes one tile of a row into *running: weights[i] = exp(z_i - running->max), 0 where filtered (the exp-sum
// has those) and where cosines[i] is -infinity. `weights` may be `cosines`.
TileWeights AddToSoftmax(const float* cosines, int length, const LogitRule& rule, RunningSoftmax* running,
                         float* weights);

// out[i] = factor * exp(z_i - reference), 0 where filtered and where cosines[i] is -infinity; no z_i may
// exceed `reference` by more than a rounding error. `out` may be `cosines`. Returns the largest exponential
// among those that are not 0.
float ExpScaled(const float* cosines, int length, const LogitRule& rule, float reference, float factor,
                float* out);

struct RowUpdate {
  float learning_rate;
  float momentum;
  float weight_decay;
};

// One class centre's update from the gradient [dim] with respect to its unit vector: through the
// normalisation, weight decay and momentum, into `momentum` and `weight` [dim].
void UpdateRow(const float* unit_gradient, int dim, const RowUpdate& update, float* weight, float* momentum);

// The instruction set in use, e.g. "AVX2".
std::string VectorTarget();

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CPU_VECTOR_MATH_H_
