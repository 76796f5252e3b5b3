// Pictures of CJK ideographs: a class is a character, a sample its picture in one font.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_DATASET_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/examples/glyphs/fonts.h"

namespace glyphs {

struct GlyphSet {
  std::vector<uint8_t> pixels;  // [size, kSide, kSide], 0 paper to 255 ink
  std::vector<int64_t> labels;  // [size], class ids

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
  const uint8_t* picture(int64_t index) const { return pixels.data() + index * kPixels; }
};

struct Dataset {
  std::vector<char32_t> characters;  // by class id, in code point order
  GlyphSet training;                 // font after font, in each by class id
  GlyphSet held_out;                 // one picture a class at most
};

// A character is a class when at least three of the training fonts have it. The first `max_classes` of them,
// 0 for all. NOT_FOUND names the package of a missing font.
absl::StatusOr<std::vector<char32_t>> ClassCharacters(const std::string& font_dir, int64_t max_classes);

// Renders all pictures; blank ones are left out. Calls `on_font` with each font's name before it is drawn.
absl::StatusOr<Dataset> RenderDataset(const std::string& font_dir, int64_t max_classes,
                                      const std::function<void(const std::string&)>& on_font);

// Gives the pictures each other's labels at random: a control that must not be learnable.
void ShuffleLabels(GlyphSet& set, uint64_t seed);

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_DATASET_H_
