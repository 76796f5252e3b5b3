#include "kernels/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ccs::kernels {
namespace {

constexpr float kInitialDeviation = 0.01f;

// Box-Muller: two uniform words to two normal values.
void NormalPair(uint32_t a, uint32_t b, float* out) {
  const float uniform = (static_cast<float>(a) + 0.5f) * 0x1p-32f;  // in (0, 1]
  const float radius = kInitialDeviation * std::sqrt(-2.0f * std::log(uniform));
  const float angle = static_cast<float>(b) * (2.0f * std::numbers::pi_v<float> * 0x1p-32f);
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

}  // namespace

void InitialCentre(uint64_t seed, int64_t class_id, int dim, float* row) {
  for (int first = 0; first < dim; first += 4) {
    const RandomBlock words = RandomAt(seed, RandomDomain::kInitialWeights, static_cast<uint64_t>(class_id),
                                       0, static_cast<uint32_t>(first / 4));
    float values[4];
    NormalPair(words[0], words[1], values);
    NormalPair(words[2], words[3], values + 2);
    std::copy_n(values, std::min(4, dim - first), row + first);
  }
}

}  // namespace ccs::kernels
