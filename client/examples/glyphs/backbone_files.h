// The backbone's side of checkpoints: one file a checkpointed step in a directory, written atomically.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_BACKBONE_FILES_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_BACKBONE_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace glyphs {

// The files "backbone-STEP.pt" of one run. The cluster finishes its checkpoints in the background and may
// come back at an earlier one than the newest file's: hence several are kept. Not thread-safe.
class BackboneFiles {
 public:
  static constexpr int kKept = 5;

  // Makes the directory if need be.
  static absl::StatusOr<BackboneFiles> Open(const std::string& directory);

  // Steps that have a file, ascending.
  std::vector<int64_t> Steps() const;

  // The file of `cluster_step`, whose later ones (an abandoned history) are removed. FAILED_PRECONDITION
  // names the cluster's step and those of the files when there is none, and removes nothing.
  absl::StatusOr<std::string> Resume(int64_t cluster_step);

  // Has `write` fill a temporary file, makes it durable, then gives it the step's name and removes all but
  // the newest kKept. On an error no file of that name appears.
  absl::Status Write(int64_t step, const std::function<absl::Status(const std::string& path)>& write);

 private:
  explicit BackboneFiles(std::string directory) : directory_(std::move(directory)) {}
  std::string PathOf(int64_t step) const;
  std::string directory_;
};

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_BACKBONE_FILES_H_
