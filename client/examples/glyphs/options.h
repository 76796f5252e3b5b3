// What the flags say.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_OPTIONS_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace glyphs {

struct Options {
  std::vector<std::string> addresses = {"localhost:8001"};
  int64_t epochs = 4;
  int64_t batch = 256;
  uint64_t seed = 1;
  int threads = 0;      // 0: all cores
  int64_t classes = 0;  // the first so many; 0: all
  std::string font_dir = "/usr/share/fonts";

  float margin = 0.2f;     // CosFace, reached after one epoch
  float lr = 0.1f;         // of the backbone, at its peak
  float centre_lr = 0.4f;  // of the class centres, at its peak
  bool freeze_centres = false;
  bool shuffle_labels = false;

  std::string output;              // directory of backbone files; empty: none are kept
  int64_t checkpoint_every = 200;  // steps; 0: only at the end
  bool resume = false;
  std::string json;  // file for the results; empty: none
  bool describe = false;
};

// Fills `options`. Returns the exit code when the program is to end here: after --help or a bad flag, having
// printed why.
std::optional<int> ParseOptions(int argc, const char* const* argv, Options& options);

// The flags that a resumed training must share with the interrupted one.
std::string RunDescription(const Options& options);

// The model spec that a cluster for this training is started with, as text. The sampling rate is left to the
// cluster's owner.
std::string ModelSpecText(const Options& options, int64_t num_classes, int dim);

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_OPTIONS_H_
