// Trainers of a cluster of real processes, for tests: one client and run each, all stepping together.
#ifndef CCS_TESTS_DISTRIBUTED_TRAINERS_H_
#define CCS_TESTS_DISTRIBUTED_TRAINERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ccs/client/client.h"
#include "tests/testing/process_cluster.h"

namespace ccs::testing {

// One trainer's rows of one step.
struct Rows {
  std::vector<float> features;  // [labels, dim]
  std::vector<int64_t> labels;
};

// Random rows, a pure function of the arguments; labels in [-1, num_classes).
Rows RandomRows(int64_t num_classes, int dim, int rows, int64_t step, int trainer_rank);

class Trainers {
 public:
  static absl::StatusOr<Trainers> Open(const ProcessCluster& cluster, int num_trainers,
                                       absl::Duration timeout = absl::Seconds(30));

  // One step of all trainers at once, rows[i] for trainer i; the last argument flags a checkpoint.
  std::vector<absl::StatusOr<client::StepResult>> Step(const std::vector<Rows>& rows, float learning_rate,
                                                       bool checkpoint = false);

  client::Client& client(int trainer = 0) { return *clients_[trainer]; }
  client::Run& run(int trainer = 0) { return *runs_[trainer]; }
  int size() const { return static_cast<int>(runs_.size()); }

 private:
  std::vector<std::unique_ptr<client::Client>> clients_;
  std::vector<std::unique_ptr<client::Run>> runs_;
};

// Ids 0 .. num_classes - 1.
std::vector<int64_t> AllClasses(int64_t num_classes);

}  // namespace ccs::testing

#endif  // CCS_TESTS_DISTRIBUTED_TRAINERS_H_
