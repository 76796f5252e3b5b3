// The order of one step.
#ifndef CCS_SERVER_ENGINE_STEP_RUNNER_H_
#define CCS_SERVER_ENGINE_STEP_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/head.h"
#include "kernels/sampling.h"
#include "kernels/shard_backend.h"
#include "server/engine/change_log.h"
#include "server/engine/engine.h"
#include "server/engine/exchange.h"
#include "server/engine/progress_board.h"
#include "server/engine/step_assembler.h"
#include "server/engine/types.h"
#include "server/metrics/metrics.h"

namespace ccs {

// Runs steps on one shard: gather, sample, pass 1, exchange, answer, pass 2. Its buffers are kept from step
// to step. Used by the engine's thread only.
class StepRunner {
 public:
  using BeforeUpdate = std::function<void(absl::Span<const int64_t> rows)>;

  // All outlive the runner.
  StepRunner(const EngineOptions& options, const EngineParts& parts, ChangeLog* log, ProgressBoard* progress);

  // Runs the step that leads to `position`. Any error ends the epoch. `before_update` gets the rows that
  // are about to change: until then an error leaves them as they were.
  absl::StatusOr<StepObservation> Run(const StepOperation& operation, const Position& position,
                                      Exchange* exchange, const BeforeUpdate& before_update);

 private:
  using Slices = std::vector<std::shared_ptr<const Slice>>;

  absl::Status CheckRows(const StepOperation& operation, const Slices& slices, int rank);
  absl::Status Gather(const StepOperation& operation, const Slices& slices, Exchange* exchange);
  // The sampled rows live until the next call.
  absl::Span<const int64_t> Sample(int64_t step);
  // Sums the partial results of the shards; leaves the gradient of the own rows.
  absl::StatusOr<double> Combine(const StepOperation& operation, Exchange* exchange);
  absl::Status Answer(const Slices& slices, const StepObservation& seen);
  kernels::Head HeadOf(const StepParams& params) const;

  const EngineOptions& options_;
  kernels::ShardBackend* const backend_;
  StepAssembler* const assembler_;
  ChangeLog* const log_;
  ProgressBoard* const progress_;
  kernels::Sampler sampler_;

  // Of the step that runs.
  int own_rows_ = 0;
  int first_own_row_ = 0;  // in the batch
  int batch_rows_ = 0;
  int64_t positives_ = 0;
  std::vector<float> own_features_;     // [own_rows, dim]
  std::vector<int64_t> own_labels_;     // [own_rows]
  std::vector<int64_t> labels_;         // [batch_rows]
  std::vector<int64_t> replayed_rows_;  // what options.sampled_rows gave
  std::vector<float> own_gradient_;     // [own_rows, dim]
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_STEP_RUNNER_H_
