// Collects the slices this shard is home to, step by step, and remembers what was answered.
#ifndef CCS_SERVER_ENGINE_STEP_ASSEMBLER_H_
#define CCS_SERVER_ENGINE_STEP_ASSEMBLER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/control_plane.h"
#include "server/engine/types.h"

namespace ccs {

// The batch assembler and exactly-once ledger of one shard.
//
// Submit (RPC threads) checks a slice against position, lineage, run and incarnation, and tells the
// coordinator that it is there. Until Go (ChooseSlices) a slice with another payload replaces the earlier one
// as a new version, unless it is of an earlier call; from Go on the payload is fixed. A repeated slice waits
// with the first, or gets the stored reply. The replies of the last completed step are kept; an older one can
// no longer be asked for, because every trainer has moved on.
//
// Call order: StartEpoch, SetRun, then any of Submit / ChooseSlices / Complete / FailStep, EndEpoch.
// Thread-safe. `done` callbacks run exactly once, on any thread, without the lock held; a callback may be
// called before Submit returns.
class StepAssembler {
 public:
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<const SliceReply>>)>;

  // Keeps `control`; it must outlive this object.
  StepAssembler(int rank, int num_shards, ControlPlane* control);

  // Serving begins at this position; where it is not the one that is remembered, without a run or replies.
  void StartEpoch(Position position);
  // Serving ends: waiting slices fail with `status`, and new ones until the next StartEpoch. The run and the
  // replies of the last completed step stay.
  void EndEpoch(const absl::Status& status);
  // Between two epochs: what a checkpoint or the log says of the run and the last step.
  void Restore(const Position& position, const RunState& run, const std::vector<AnsweredSlice>& answers);
  // Between two epochs: the next step's slices, which nobody waits for; Complete ends it.
  void Replay(int64_t step, const std::vector<std::shared_ptr<const Slice>>& slices);
  // The run after an OpenRun or CloseRun. Slices not yet chosen of trainers whose incarnation changed fail.
  void SetRun(const RunState& run);
  // FAILED_PRECONDITION (run, incarnation, step, payload; with an ErrorInfo payload, see error_info.h),
  // ABORTED (lineage), UNAVAILABLE (not serving), INVALID_ARGUMENT (not at home here), RESOURCE_EXHAUSTED
  // (too many payloads for one step).
  void Submit(Slice slice, Done done);

  // The coordinator said Go: fixes the step's slices, fails the waits of other versions, and makes step + 1
  // the one expected. INTERNAL, without a change, if a chosen version is not there.
  absl::Status ChooseSlices(const StepOperation& operation);
  // The chosen slices, in the operation's order; alive until Complete.
  std::vector<std::shared_ptr<const Slice>> ChosenSlices(int64_t step) const;
  // How long the step's first slice here waited for Go.
  absl::Duration TimeToGo(int64_t step) const;
  // Stores the replies, in the order of ChosenSlices, and answers the trainers.
  void Complete(int64_t step, std::vector<SliceReply> replies);
  // The coordinator said that this attempt has failed: drops its slices.
  void FailStep(int64_t step, int attempt, const absl::Status& status);

  // The replies of step `step`, if they are there.
  std::vector<AnsweredSlice> AnsweredSlices(int64_t step) const;
  // The last step that was said Go, and the lineage.
  Position position() const;

 private:
  using Reply = std::shared_ptr<const SliceReply>;

  // One payload of a trainer for the step to come.
  struct Candidate {
    int version = 0;
    std::shared_ptr<const Slice> slice;
    std::vector<Done> waiting;
  };
  // A slice after Go.
  struct Chosen {
    std::string run_id;
    int trainer_rank = 0;
    uint64_t digest = 0;
    std::shared_ptr<const Slice> slice;  // null once answered
    std::vector<Done> waiting;
    Reply reply;  // null until answered
  };
  struct ChosenStep {
    absl::Duration time_to_go;
    bool completed = false;
    std::vector<Chosen> slices;
  };
  // Callbacks that are due; they run when this is destroyed. Declare it before the lock, so that the lock is
  // released by then.
  class Answers {
   public:
    ~Answers();
    void Add(Done done, absl::StatusOr<Reply> reply) { due_.emplace_back(std::move(done), std::move(reply)); }
    void AddAll(std::vector<Done> waiting, const absl::StatusOr<Reply>& reply);

   private:
    std::vector<std::pair<Done, absl::StatusOr<Reply>>> due_;
  };

  // All below: mutex_ is held.
  absl::Status Check(const Slice& slice);
  void AddCandidate(Slice slice, Done done, Answers* answers);
  void JoinChosen(const Slice& slice, Done done, Answers* answers);
  void DropCandidates(const absl::Status& status, Answers* answers);
  Chosen* FindChosen(const Slice& slice);  // null: not one of the steps kept
  const Candidate* FindCandidate(const SliceChoice& choice) const;

  const int rank_;
  const int num_shards_;
  ControlPlane* const control_;

  mutable std::mutex mutex_;
  absl::Status not_serving_;  // OK while serving
  Position position_;
  RunState run_;
  int attempt_ = 1;                                   // of step position_.step + 1
  absl::Time first_arrival_;                          // of the candidates
  std::map<int, std::vector<Candidate>> candidates_;  // of step position_.step + 1, by trainer rank
  std::map<int64_t, ChosenStep> chosen_;              // running steps and the last completed one
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_STEP_ASSEMBLER_H_
