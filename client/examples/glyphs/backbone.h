// The small convolutional network and its optimiser; libtorch stays behind this header.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_BACKBONE_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_BACKBONE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace glyphs {

inline constexpr int kDim = 128;  // width of a feature

// Pictures are [rows, kSide, kSide], features [rows, kDim], both row-major float32. A training step is
// Forward, then Backward with the gradient that the service returned. Not thread-safe.
class Backbone {
 public:
  // Initial weights are a pure function of `seed`. `threads` is how many cores a call uses.
  Backbone(uint64_t seed, int threads);
  ~Backbone();
  Backbone(const Backbone&) = delete;
  Backbone& operator=(const Backbone&) = delete;

  // Valid until the next call.
  absl::Span<const float> Forward(absl::Span<const float> pictures);
  // One step of momentum SGD along the gradient of the features that Forward returned last.
  void Backward(absl::Span<const float> feature_grad, float learning_rate);

  enum class Statistics { kLearned, kOfBatch };  // what batch normalisation uses
  // Features of unit length, without training.
  std::vector<float> Embed(absl::Span<const float> pictures, Statistics statistics);

  // Weights, statistics and momentum, with a description of the run that they belong to. Load refuses a file
  // with another description (FAILED_PRECONDITION, naming both) and leaves the backbone unusable on other
  // errors.
  absl::Status Save(const std::string& path, const std::string& description) const;
  absl::Status Load(const std::string& path, const std::string& description);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_BACKBONE_H_
