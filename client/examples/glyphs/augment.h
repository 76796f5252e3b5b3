// Turns stored pictures into the network's input, with or without random changes.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_AUGMENT_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_AUGMENT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/examples/glyphs/dataset.h"

namespace glyphs {

// [indices, kSide, kSide], 0 paper to 1 ink.
std::vector<float> PlainBatch(const GlyphSet& set, absl::Span<const int64_t> indices);

// The same, each picture rotated by up to 5 degrees, scaled by up to 12 % per axis, sheared by up to 0.12,
// shifted by up to 2 pixels, thickened or thinned, blurred, its contrast changed to 0.7..1.1 and noise of
// deviation 0.05 added. A pure function of the arguments.
std::vector<float> AugmentedBatch(const GlyphSet& set, absl::Span<const int64_t> indices, uint64_t seed,
                                  int64_t step);

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_AUGMENT_H_
