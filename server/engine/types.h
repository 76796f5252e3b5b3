// What moves between the RPC layer, the control plane and the engine.
#ifndef CCS_SERVER_ENGINE_TYPES_H_
#define CCS_SERVER_ENGINE_TYPES_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "kernels/head.h"
#include "server/storage/checkpoint_store.h"

namespace ccs {

// Where a cluster stands: `step` steps of `lineage` are applied. `index` numbers what changes the state since
// the lineage began: steps, committed writes and changes of the run.
struct Position {
  uint64_t lineage = 0;
  int64_t step = 0;
  int64_t index = 0;
  friend bool operator==(const Position&, const Position&) = default;
};

// What all trainers of a step must say the same. Absent: the spec's.
struct StepParams {
  float learning_rate = 0;
  std::optional<float> scale;
  std::optional<kernels::Margin> margin;
  bool checkpoint = false;
  friend bool operator==(const StepParams&, const StepParams&) = default;
};

// One trainer's rows on one home shard, for one step.
struct Slice {
  std::string run_id;
  uint64_t incarnation = 0;
  uint64_t lineage = 0;
  int trainer_rank = 0;
  int64_t step = 0;
  int64_t call = 0;  // of the trainer; the parts of one go together
  StepParams params;
  float gradient_scale = 1;
  std::vector<float> features;                   // [rows, dim]
  std::vector<int64_t> labels;                   // [rows]
  uint64_t digest = 0;                           // of params, gradient_scale, features and labels
  absl::Time deadline = absl::InfiniteFuture();  // until when the trainer waits

  int rows() const { return static_cast<int>(labels.size()); }
};

struct StepStatistics {
  int64_t batch_rows = 0;       // all trainers
  int64_t labelled_rows = 0;    // all trainers
  int64_t sampled_classes = 0;  // this shard
  int64_t positives = 0;        // this shard
};

struct SliceReply {
  int64_t step = 0;
  double loss = 0;
  std::vector<float> feature_grad;  // [rows, dim], gradient_scale applied
  StepStatistics statistics;
};

// A slice that has its reply: what a repeated request is compared with, and gets.
struct AnsweredSlice {
  std::string run_id;
  int trainer_rank = 0;
  uint64_t digest = 0;
  std::shared_ptr<const SliceReply> reply;
};

// The open run; an empty run_id is none.
struct RunState {
  std::string run_id;
  std::vector<uint64_t> incarnations;  // by trainer rank; 0: not opened yet
  int num_trainers() const { return static_cast<int>(incarnations.size()); }
  friend bool operator==(const RunState&, const RunState&) = default;
};

// A version of a slice that the coordinator has chosen for a step.
struct SliceChoice {
  int trainer_rank = 0;
  int version = 0;
};

// Operations that involve all shards, executed by every engine in the coordinator's order.

struct StepOperation {
  int64_t step = 0;
  StepParams params;
  std::vector<int> rows_per_rank;
  std::vector<SliceChoice> slices;         // of this shard, by trainer rank
  std::optional<CheckpointId> checkpoint;  // to be written after the update
};

// A query's rows are with the engine of `origin_rank`; the others get them through the collectives.
struct EvaluateOperation {
  int rows = 0;
  std::optional<double> sample_rate;  // absent: every class
  int origin_rank = 0;
  uint64_t query = 0;
};

struct NearestOperation {
  int rows = 0;
  int k = 0;
  int origin_rank = 0;
  uint64_t query = 0;
};

struct CommitWriteOperation {
  std::string write_id;
  int64_t rows = 0;  // over all shards
};

struct CheckpointOperation {
  CheckpointId id;
  std::string reason;
};

// The checkpoint is not kept for its own sake any longer.
struct ReleaseOperation {
  CheckpointId id;
};

// The run after an OpenRun or CloseRun.
struct RunOperation {
  RunState run;
};

using Operation = std::variant<StepOperation, EvaluateOperation, NearestOperation, CommitWriteOperation,
                               CheckpointOperation, ReleaseOperation, RunOperation>;

struct CommittedWrite {
  std::string write_id;
  int64_t rows = 0;
  friend bool operator==(const CommittedWrite&, const CommittedWrite&) = default;
};

// A stretch of a lineage's log: from where one stands in it, or from its beginning, up to the record `to`,
// but not beyond step `to_step`.
struct Replay {
  uint64_t lineage = 0;
  int64_t to = 0;
  int64_t to_step = std::numeric_limits<int64_t>::max();
  friend bool operator==(const Replay&, const Replay&) = default;
};

// How a state is made: a checkpoint (absent: the initial weights) and what is replayed onto it, in order.
struct Origin {
  std::optional<CheckpointId> checkpoint;
  std::vector<Replay> replays;
  friend bool operator==(const Origin&, const Origin&) = default;
  std::string ToString() const;  // "checkpoint 1-20-... and the log of lineage 1 up to record 31"
};

// A group of shards that is to form, and the state that it begins with.
struct EpochPlan {
  uint64_t epoch = 0;
  uint64_t lineage = 0;
  // The state is in every shard's memory; only origin.replays are left to do.
  bool from_memory = false;
  Origin origin;
  // The lineage is new and begins with this state; otherwise it goes on.
  bool begins_lineage = true;
};

// What a group begins with, once it is there.
struct FormedState {
  Position position;
  RunState run;
  std::vector<CommittedWrite> committed_writes;
  friend bool operator==(const FormedState&, const FormedState&) = default;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_TYPES_H_
