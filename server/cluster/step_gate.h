// Holds back a step until every trainer's slices are there and agree.
#ifndef CCS_SERVER_CLUSTER_STEP_GATE_H_
#define CCS_SERVER_CLUSTER_STEP_GATE_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/types.h"

namespace ccs {

struct StepGateOptions {
  int num_shards = 1;
  int max_batch = 4096;
  bool can_checkpoint = false;
  absl::Duration step_timeout = absl::Seconds(60);
};

// The slices of the next step, by (rank, trainer). Not thread-safe.
//
//   gate.Add(rank, slice, now);
//   if (auto verdict = gate.Decide(now)) {
//     if (verdict->ok()) { ... gate.Operation(rank) for every rank ...; gate.Passed(); }
//     else { ... StepFailed(gate.step(), gate.attempt()) ...; gate.Failed(); }
//   }
class StepGate {
 public:
  // Waits for the step after `applied_step`.
  StepGate(const StepGateOptions& options, int64_t applied_step);

  int64_t step() const { return step_; }
  int attempt() const { return attempt_; }

  // The open run, whose trainers' slices the gate waits for. Drops slices of other runs and incarnations.
  void SetRun(const RunState& run);
  // Takes a slice of the open run, this step and this attempt; one of anything else, or not newer than the
  // one already there (by version, or of a later call), is left out.
  void Add(int rank, const v1::SliceReady& slice, absl::Time now);

  // Nothing while it waits. OK: the step may go. FAILED_PRECONDITION: the trainers disagree, or ask for a
  // checkpoint that cannot be; RESOURCE_EXHAUSTED: too many rows; DEADLINE_EXCEEDED: trainers are missing.
  std::optional<absl::Status> Decide(absl::Time now) const;

  // The step as `rank` is to run it, without a checkpoint. Only when Decide says OK.
  v1::StepOp Operation(int rank) const;
  bool asks_for_checkpoint() const;

  void Passed();  // on to the next step
  void Failed();  // on to the next attempt

  // Trainers that others wait for, ascending; empty if nobody waits.
  std::vector<int> MissingTrainers() const;

 private:
  struct Arrival {
    v1::SliceReady slice;
    absl::Time deadline;  // when the trainer needs an answer
  };
  using Key = std::pair<int, int>;  // trainer, rank

  bool Wanted(int rank, const v1::SliceReady& slice) const;
  // Are the parts of each trainer of one call?
  bool CallsAreWhole() const;
  absl::Status CheckAgreement() const;
  absl::Status CheckRows() const;
  absl::Status CheckDeadline(absl::Time now) const;

  const StepGateOptions options_;
  int64_t step_;
  int attempt_ = 1;
  RunState run_;
  size_t expected_ = 0;  // slices
  std::map<Key, Arrival> arrivals_;
  absl::Time first_arrival_;  // if there are any
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_STEP_GATE_H_
