// The engine: the one thread of a shard that owns the step, and alone knows its order.
#ifndef CCS_SERVER_ENGINE_ENGINE_H_
#define CCS_SERVER_ENGINE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/shard_backend.h"
#include "server/cluster/collective.h"
#include "server/engine/control_plane.h"
#include "server/engine/staged_writes.h"
#include "server/engine/step_assembler.h"
#include "server/engine/types.h"
#include "server/metrics/metrics.h"
#include "server/model_spec.h"
#include "server/storage/checkpoint_mirror.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/step_log.h"

namespace ccs {

// Where a step's sampled rows come from, when not from the sampler (replays, tests).
using SampledRowsOverride = std::function<std::vector<int64_t>(int64_t step)>;

struct EngineOptions {
  int rank = 0;
  int num_shards = 1;
  ModelSpec spec;
  std::string canonical_spec;  // for checkpoint headers
  // A collective that takes longer ends the epoch.
  absl::Duration collective_timeout = absl::Seconds(60);
  // For connecting the collectives of an epoch. A peer that dies meanwhile is noticed no earlier, and neither
  // does EndEpoch return.
  absl::Duration connect_timeout = absl::Seconds(60);
  // Checkpoints kept on disk, at least 1.
  int keep_checkpoints = 3;
  // Rows that change before a checkpoint has written them are copied, up to this much; then steps wait.
  int64_t checkpoint_staging_bytes = int64_t{256} << 20;
  SampledRowsOverride sampled_rows;  // null: the sampler
};

// What the engine works with; all of it outlives the engine. `checkpoints` may be null: none are written.
struct EngineParts {
  kernels::ShardBackend* backend = nullptr;
  StepAssembler* assembler = nullptr;
  StagedWrites* staged_writes = nullptr;
  CheckpointStore* checkpoints = nullptr;
  CheckpointMirror* mirror = nullptr;  // null: none
  StepLog* log = nullptr;              // null: steps since the last checkpoint are lost in a crash
  ControlPlane* control = nullptr;
  Metrics* metrics = nullptr;
  // Makes the collectives of an epoch (MakeCpuCollective, or a test's).
  std::function<absl::StatusOr<std::unique_ptr<Collective>>(absl::Time deadline, const Rendezvous&)>
      make_collective;
};

struct EvaluateResult {
  kernels::Evaluation evaluation;
  int64_t labelled_rows = 0;
  Position position;
};

struct NearestResult {
  std::vector<kernels::Neighbour> neighbours;  // [rows, k]
  Position position;
};

struct CentreRows {
  std::vector<float> centres;   // [class_ids, dim]
  std::vector<float> momentum;  // the same, or empty if not asked for
  Position position;
};

struct EngineProgress {
  int64_t step = 0;       // applied, update included
  std::string activity;   // "idle", "pass 1", "restoring", ...
  uint64_t progress = 0;  // grows while the engine gets on
  double loss = 0;        // of the last step
};

// Executes operations in the order in which they are enqueued. Thread-safe.
//
// Failure: an error of a collective, or any error after a step's Go, ends the epoch: the engine reports
// EpochFailed once, drops what is queued, and waits for EndEpoch and the next StartEpoch, which brings the
// state of the plan about: from memory or a checkpoint, and by replaying the log through the same steps.
// Operations that fail without touching state (a checkpoint on a full disk, a query) fail alone.
class Engine {
 public:
  Engine(EngineOptions options, EngineParts parts);
  // Aborts collectives, fails what waits with UNAVAILABLE, joins the thread.
  ~Engine();

  // Connects the collectives, brings the plan's state about, and reports ControlPlane::Formed.
  void StartEpoch(const EpochPlan& plan, Rendezvous rendezvous);
  // Aborts collectives and drops the queue; queries and reads that wait fail with `status`. Returns when the
  // engine is idle.
  void EndEpoch(const absl::Status& status);
  void Enqueue(uint64_t sequence, Operation operation);
  // A checkpoint is whole on every shard: older ones beyond the number kept are removed.
  void CheckpointCommitted(const CheckpointId& id);

  // ---- Queries. Register first, then have the operation ordered with the returned name; `done` runs exactly
  // once, on the engine's thread or in FailQuery or EndEpoch.
  uint64_t AddEvaluate(std::vector<float> features, std::vector<int64_t> labels,
                       std::function<void(absl::StatusOr<EvaluateResult>)> done);
  uint64_t AddNearest(std::vector<float> queries, std::function<void(absl::StatusOr<NearestResult>)> done);
  // The query will not be ordered. Nothing happens if it has been answered.
  void FailQuery(uint64_t query, const absl::Status& status);

  // Rows of this shard (class ids in its range), between two operations.
  void ReadCentres(std::vector<int64_t> class_ids, bool with_momentum,
                   std::function<void(absl::StatusOr<CentreRows>)> done);

  EngineProgress progress() const;
  // Where the state in memory stands, between two changes; absent before the first epoch and when an update
  // was broken off.
  std::optional<Position> memory() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_ENGINE_H_
