// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). A value is a pure function of a
// 64-bit key and a 128-bit counter, so draws need no state and no order.
#ifndef CCS_KERNELS_RANDOM_H_
#define CCS_KERNELS_RANDOM_H_

#include <array>
#include <cstdint>

namespace ccs::kernels {

// Uses of randomness never share a counter.
enum class RandomDomain : uint32_t { kInitialWeights = 1, kSampling = 2 };

using RandomBlock = std::array<uint32_t, 4>;

constexpr RandomBlock Philox(uint64_t key, RandomBlock counter) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// Block number `index` of the stream (seed, domain, major, minor); minor < 2^24.
constexpr RandomBlock RandomAt(uint64_t seed, RandomDomain domain, uint64_t major, uint32_t minor,
                               uint32_t index) {
  return Philox(seed, {index, static_cast<uint32_t>(major), static_cast<uint32_t>(major >> 32),
                       (static_cast<uint32_t>(domain) << 24) | minor});
}

// One class's initial centre, N(0, 0.01^2), a pure function of (seed, class_id). `row` [dim] is overwritten.
void InitialCentre(uint64_t seed, int64_t class_id, int dim, float* row);

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_RANDOM_H_
