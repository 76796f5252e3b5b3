#include "server/engine/slice_digest.h"

#include <xxhash.h>

#include <array>
#include <bit>

namespace ccs {

uint64_t SliceDigest(const Slice& slice) {
  const StepParams& params = slice.params;
  const kernels::Margin margin = params.margin.value_or(kernels::Margin{});
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  // The counts keep features and labels of different splits apart.
  const std::array<uint64_t, 11> words = {bits(params.learning_rate),
                                          params.scale.has_value(),
                                          bits(params.scale.value_or(0)),
                                          params.margin.has_value(),
                                          bits(margin.m1),
                                          bits(margin.m2),
                                          bits(margin.m3),
                                          params.checkpoint,
                                          bits(slice.gradient_scale),
                                          slice.features.size(),
                                          slice.labels.size()};
  uint64_t hash = XXH3_64bits(words.data(), sizeof(words));
  hash = XXH3_64bits_withSeed(slice.features.data(), slice.features.size() * sizeof(float), hash);
  return XXH3_64bits_withSeed(slice.labels.data(), slice.labels.size() * sizeof(int64_t), hash);
}

}  // namespace ccs
