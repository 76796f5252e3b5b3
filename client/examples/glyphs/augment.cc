#include "client/examples/glyphs/augment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "client/examples/glyphs/random.h"

namespace glyphs {
namespace {

constexpr float kRadians = 3.14159265f / 180;
constexpr float kMaxRotation = 5 * kRadians;
constexpr float kMaxStretch = 0.12f;
constexpr float kMaxShear = 0.12f;
constexpr float kMaxShift = 2;
constexpr float kMaxThicken = 0.8f;  // share of the 3x3 maximum or minimum mixed in
constexpr float kMaxThin = 0.5f;
constexpr float kNoise = 0.05f;

constexpr int kPadded = kSide + 2;
// A picture with a rim of paper one pixel wide, so that 3x3 filters need no edge cases.
using Padded = std::array<float, kPadded * kPadded>;

constexpr int At(int y, int x) { return (y + 1) * kPadded + x + 1; }

// Pixel (x, y) of the result shows the source at matrix * (x, y) around the centre, plus shift.
struct Warp {
  float xx, xy, yx, yy, dx, dy;
};

Warp RandomWarp(Random& random) {
  const float angle = random.Uniform(-kMaxRotation, kMaxRotation);
  const float stretch_x = 1 + random.Uniform(-kMaxStretch, kMaxStretch);
  const float stretch_y = 1 + random.Uniform(-kMaxStretch, kMaxStretch);
  const float shear = random.Uniform(-kMaxShear, kMaxShear);
  const float c = std::cos(angle), s = std::sin(angle);
  return {.xx = c / stretch_x,
          .xy = (c * shear - s) / stretch_y,
          .yx = s / stretch_x,
          .yy = (s * shear + c) / stretch_y,
          .dx = random.Uniform(-kMaxShift, kMaxShift),
          .dy = random.Uniform(-kMaxShift, kMaxShift)};
}

// Bilinear; outside the source is paper.
void ApplyWarp(const Warp& warp, const Padded& source, Padded& result) {
  constexpr float kCentre = (kSide - 1) / 2.0f;
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const float u = static_cast<float>(x) - kCentre, v = static_cast<float>(y) - kCentre;
      // Clamped onto the rim, which is paper.
      const float sx = std::clamp(warp.xx * u + warp.xy * v + warp.dx + kCentre, -1.0f, kSide - 0.001f);
      const float sy = std::clamp(warp.yx * u + warp.yy * v + warp.dy + kCentre, -1.0f, kSide - 0.001f);
      const int x0 = static_cast<int>(sx + 1) - 1, y0 = static_cast<int>(sy + 1) - 1;
      const float fx = sx - static_cast<float>(x0), fy = sy - static_cast<float>(y0);
      const float* p = &source[static_cast<size_t>(At(y0, x0))];
      const float upper = p[0] + fx * (p[1] - p[0]);
      const float lower = p[kPadded] + fx * (p[kPadded + 1] - p[kPadded]);
      result[static_cast<size_t>(At(y, x))] = upper + fy * (lower - upper);
    }
  }
}

// result = picture + strength * (filter over each 3x3 neighbourhood - picture), the filter being `combine`
// along rows, then along columns.
template <typename Combine>
void Mix3x3(float strength, Combine combine, Padded& picture) {
  Padded rows;
  rows.fill(0);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const float* p = &picture[static_cast<size_t>(At(y, x))];
      rows[static_cast<size_t>(At(y, x))] = combine(p[-1], p[0], p[1]);
    }
  }
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const float* p = &rows[static_cast<size_t>(At(y, x))];
      float& value = picture[static_cast<size_t>(At(y, x))];
      value += strength * (combine(p[-kPadded], p[0], p[kPadded]) - value);
    }
  }
}

void RandomStrokes(Random& random, Padded& picture) {
  const float kind = random.Uniform(0, 3);
  if (kind < 1) {
    Mix3x3(
        random.Uniform(0, kMaxThicken), [](float a, float b, float c) { return std::max(a, std::max(b, c)); },
        picture);
  } else if (kind < 2) {
    Mix3x3(
        random.Uniform(0, kMaxThin), [](float a, float b, float c) { return std::min(a, std::min(b, c)); },
        picture);
  }
  if (random.Uniform(0, 1) < 0.5f) {
    Mix3x3(
        random.Uniform(0, 1), [](float a, float b, float c) { return 0.25f * (a + c) + 0.5f * b; }, picture);
  }
}

void Augment(const uint8_t* source, Random random, float* result) {
  Padded plain, picture;
  plain.fill(0);
  picture.fill(0);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) plain[static_cast<size_t>(At(y, x))] = source[y * kSide + x] / 255.0f;
  }
  ApplyWarp(RandomWarp(random), plain, picture);
  RandomStrokes(random, picture);
  const float contrast = random.Uniform(0.7f, 1.1f);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      *result++ = picture[static_cast<size_t>(At(y, x))] * contrast + kNoise * random.Normal();
    }
  }
}

}  // namespace

std::vector<float> PlainBatch(const GlyphSet& set, absl::Span<const int64_t> indices) {
  std::vector<float> result;
  result.reserve(indices.size() * kPixels);
  for (int64_t index : indices) {
    const uint8_t* picture = set.picture(index);
    for (int i = 0; i < kPixels; ++i) result.push_back(picture[i] / 255.0f);
  }
  return result;
}

std::vector<float> AugmentedBatch(const GlyphSet& set, absl::Span<const int64_t> indices, uint64_t seed,
                                  int64_t step) {
  std::vector<float> result(indices.size() * kPixels);
  for (size_t row = 0; row < indices.size(); ++row) {
    Augment(set.picture(indices[row]), Random({seed, kAugmentStream, static_cast<uint64_t>(step), row}),
            result.data() + row * kPixels);
  }
  return result;
}

}  // namespace glyphs
