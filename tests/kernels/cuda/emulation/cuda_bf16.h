// bfloat16: the upper half of a float.
#ifndef CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_BF16_H_
#define CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_BF16_H_

#include <bit>
#include <cstdint>

// NOLINTBEGIN(bugprone-reserved-identifier): the names are those of the toolkit.
struct __nv_bfloat16 {
  uint16_t bits;
};

// To the nearest, ties to even.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};  // NaN
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

inline float __bfloat162float(__nv_bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
// NOLINTEND(bugprone-reserved-identifier)

#endif  // CCS_TESTS_KERNELS_CUDA_EMULATION_CUDA_BF16_H_
