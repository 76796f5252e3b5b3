// One shard's part in the group: connects to the coordinator, and carries its word to the engine.
#ifndef CCS_SERVER_CLUSTER_MEMBER_H_
#define CCS_SERVER_CLUSTER_MEMBER_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cluster/control_stream.h"
#include "server/engine/control_plane.h"
#include "server/engine/engine.h"
#include "server/engine/staged_writes.h"
#include "server/engine/step_assembler.h"

namespace ccs {

struct MemberOptions {
  v1::Register registration;  // checkpoints are filled in anew each time
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration heartbeat_timeout = absl::Seconds(10);
  absl::Duration drain_timeout = absl::Seconds(120);
};

// Runs the shard's life on one thread: connect, register, form, serve, and again when the group disbands.
//
// Call order: construct, SetParts, Start, [Propose ...], Drain or Stop. Thread-safe.
class Member : public ControlPlane {
 public:
  // `connector` outlives the member.
  Member(MemberOptions options, ControlConnector* connector);
  ~Member() override;

  // What the coordinator's word goes to; all outlive the member. (The engine and the assembler want the
  // member as their control plane, so they come second.) `checkpoints` and `log` may be null.
  struct Parts {
    Engine* engine = nullptr;
    StepAssembler* assembler = nullptr;
    StagedWrites* staged_writes = nullptr;
    CheckpointStore* checkpoints = nullptr;
    StepLog* log = nullptr;
    Metrics* metrics = nullptr;
  };
  void SetParts(const Parts& parts);
  void Start();

  // Asks the coordinator for an operation; token and epoch are filled in. `done` runs exactly once: with the
  // coordinator's result, its refusal, or UNAVAILABLE when the group is forming or disbands.
  void Propose(v1::Propose proposal, std::function<void(absl::StatusOr<v1::Result>)> done);

  // Has the cluster checkpoint one position on all ranks and stops; returns when that is done, at once if
  // the group is not serving. DEADLINE_EXCEEDED past drain_timeout.
  absl::Status Drain(const std::string& reason);
  // Stops without a word.
  void Stop();

  // Blocks until the member has stopped; OK after Drain or Stop, else why the coordinator refuses this shard
  // (a differing spec, a duplicate rank, ...), which no retry can mend.
  absl::Status Wait();

  // The layout of the current epoch; empty while forming.
  v1::Layout layout() const;
  bool serving() const;
  // For people: "forming: waiting for ranks 1, 2", "serving", "the coordinator does not answer: ...".
  std::string state() const;

  // ControlPlane, for the engine and the assembler.
  void SliceReady(const Slice& slice, int version, int attempt) override;
  void WriteStaged(const std::string& write_id, int64_t rows) override;
  void Formed(uint64_t epoch, const absl::StatusOr<FormedState>& state) override;
  void OperationDone(uint64_t sequence, const absl::Status& status, int64_t bytes) override;
  void EpochFailed(const absl::Status& status) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_MEMBER_H_
