// Random numbers that are a pure function of a key, the same on every machine and standard library, so that a
// resumed run draws what an uninterrupted one would have drawn.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_RANDOM_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace glyphs {

// First parts of keys after the seed: uses that must not share draws.
enum RandomStream : uint64_t { kOrderStream = 1, kAugmentStream = 2, kShuffleLabelsStream = 3 };

// SplitMix64.
class Random {
 public:
  Random(std::initializer_list<uint64_t> key) {
    for (uint64_t part : key) state_ = (*this)() ^ part;
  }

  uint64_t operator()() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // In [low, high).
  float Uniform(float low, float high) {
    return low + (high - low) * static_cast<float>((*this)() >> 40) * 0x1p-24f;
  }

  // Mean 0, deviation 1, never beyond 3.5: the sum of four uniform numbers taken out of one draw.
  float Normal() {
    const uint64_t z = (*this)();
    const auto sum = static_cast<float>((z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48));
    return (sum * 0x1p-16f - 2.0f) * 1.7320508f;
  }

  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[(*this)() % i]);
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_RANDOM_H_
