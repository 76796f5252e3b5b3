// The training loop against a cluster, and the test at its end.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_TRAINER_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ccs/client/client.h"
#include "client/examples/glyphs/backbone.h"
#include "client/examples/glyphs/backbone_files.h"
#include "client/examples/glyphs/dataset.h"
#include "client/examples/glyphs/options.h"
#include "client/examples/glyphs/progress.h"
#include "client/examples/glyphs/schedule.h"

namespace glyphs {

// Rank-1 on the held-out font, among all classes.
struct Accuracy {
  double against_centres = 0;      // read back from the cluster
  double against_class_means = 0;  // of the training pictures' embeddings
};

// Call Start, Train, Test in this order, each once, and stop at the first error. Not thread-safe. What the
// constructor is given must outlive it.
class Trainer {
 public:
  // Training stops early, after a last step with a checkpoint, once `stop_signal` is not 0.
  // `dataset` has at least one batch of training pictures.
  Trainer(const Options& options, const Dataset& dataset, ccs::client::Client& client,
          const std::atomic<int>& stop_signal);

  // Opens the run; then resumes the backbone or, at the cluster's step 0, writes the first centres.
  absl::Status Start();
  // When a step fails the backbone is saved as it was before it.
  absl::StatusOr<TrainingSummary> Train();
  absl::StatusOr<Accuracy> Test();

 private:
  struct Batch {
    std::vector<float> pictures;  // [batch, kSide, kSide]
    std::vector<int64_t> labels;  // [batch]
  };
  absl::Status Resume(int64_t cluster_step);
  absl::Status WriteFirstCentres();
  // Sums of unit embeddings by class, [classes, kDim].
  std::vector<float> ClassSums(const std::vector<int64_t>& order, Backbone::Statistics statistics);
  absl::Status TrainStep(int64_t step, const Batch& batch, bool stopping, Progress& progress);
  std::future<Batch> PrepareBatch(int64_t step);
  absl::Status SaveBackbone(int64_t step);

  const Options& options_;
  const Dataset& dataset_;
  ccs::client::Client& client_;
  const std::atomic<int>& stop_signal_;
  const Schedule schedule_;
  SampleOrder order_;
  Backbone backbone_;
  std::optional<BackboneFiles> files_;
  std::unique_ptr<ccs::client::Run> run_;
  int64_t step_ = 0;  // applied
};

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_TRAINER_H_
