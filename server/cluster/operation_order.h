// One epoch's operations, put in one order for all shards.
#ifndef CCS_SERVER_CLUSTER_OPERATION_ORDER_H_
#define CCS_SERVER_CLUSTER_OPERATION_ORDER_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/cluster/checkpoint_catalogue.h"
#include "server/cluster/coordinator.h"
#include "server/cluster/pending_operations.h"
#include "server/cluster/step_gate.h"
#include "server/cluster/write_ledger.h"
#include "server/engine/types.h"

namespace ccs {

// Lives from Serve to Disband. Not thread-safe.
//
// Steps go when the gate lets them; proposals at once. Whoever proposed is told when every shard is done,
// for queries when they have their place. Watch over() after each call.
class OperationOrder {
 public:
  struct Start {
    uint64_t epoch = 0;
    FormedState state;
    // A step that a trainer wanted to go on from and why it cannot be had.
    std::optional<std::pair<int64_t, absl::Status>> out_of_reach;
  };
  using SendToRank = std::function<void(int rank, const v1::CoordinatorMessage&)>;

  // The catalogue outlives the order. `max_batch` is the spec's.
  OperationOrder(const CoordinatorOptions& options, int max_batch, const Start& start,
                 CheckpointCatalogue* catalogue, SendToRank send);

  void SliceReady(int rank, const v1::SliceReady& slice, absl::Time now);
  void Propose(int rank, const v1::Propose& proposal, absl::Time now);
  void WriteStaged(int rank, const v1::WriteStaged& staged, absl::Time now);
  void OperationDone(int rank, const v1::OperationDone& done);
  void Tick(absl::Time now);

  // Set once the group has to disband: it is drained, or its shards no longer agree.
  const std::optional<absl::Status>& over() const { return over_; }

  Position position() const { return {start_.state.position.lineage, gate_.step() - 1, index_}; }
  // A trainer wants the cluster to go on from this step; the group disbands for it.
  std::optional<int64_t> resume_step() const { return resume_step_; }
  const RunState& run() const { return run_; }
  bool draining() const { return draining_; }
  // What it waits for, for people; empty if nothing.
  std::string Describe() const;

 private:
  struct Proposer {
    int rank;
    uint64_t token;
  };
  struct HeldCommit {
    Proposer proposer;
    v1::CommitWriteOp commit;
    absl::Time deadline;
  };
  using CheckpointFinished = std::function<void(const absl::Status&, const v1::CheckpointInfo&)>;

  void DecideStep(absl::Time now);
  void GoStep();
  void FailStep(const absl::Status& status);

  void OpenRun(const Proposer& proposer, const v1::OpenRunRequest& request, absl::Time now);
  // Does the request go on from where the cluster is? Otherwise it is answered, or the group goes there.
  bool StandsWhereWanted(const Proposer& proposer, const v1::OpenRunRequest& request);
  void CloseRun(const Proposer& proposer, const v1::CloseRunRequest& request);
  void ChangeRun(const RunState& run, std::function<void()> finished);
  void Evaluate(const Proposer& proposer, v1::EvaluateOp query);
  void Nearest(const Proposer& proposer, v1::NearestOp query);

  // False if it has to wait for rows that are still on their way here.
  bool TryCommit(const Proposer& proposer, const v1::CommitWriteOp& commit, bool may_wait);
  void GoCommit(const v1::CommitWriteOp& commit);
  void FinishCommit(const v1::CommitWriteOp& commit, const OperationOutcome& outcome);
  void RetryHeldCommits(absl::Time now);

  void Checkpoint(const std::string& reason, CheckpointFinished finished);
  v1::CheckpointId NewCheckpointId() const;
  void AwaitCheckpoint(uint64_t sequence, const v1::CheckpointId& id, bool kept, CheckpointFinished finished);
  void FinishCheckpoint(uint64_t sequence, v1::CheckpointInfo info, const OperationOutcome& outcome);

  void Release(const Proposer& proposer, const CheckpointId& id);

  void Drain(const Proposer& proposer);
  void FinishDrain(const absl::Status& status, const v1::CheckpointInfo& checkpoint);

  // Sends an operation to every rank under the next sequence number, which it returns.
  uint64_t Broadcast(v1::Go go);
  void SendToAll(const v1::CoordinatorMessage& message);
  void Reply(const Proposer& proposer, const absl::Status& status, v1::Result result = {});

  const CoordinatorOptions& options_;
  const Start start_;
  CheckpointCatalogue* const catalogue_;
  const SendToRank send_;
  uint64_t sequence_ = 0;  // of the last operation
  int64_t index_ = 0;      // of the last change, see Position
  std::optional<int64_t> resume_step_;
  uint64_t last_change_ = 0;        // sequence of the last operation that changed the state
  uint64_t last_checkpointed_ = 0;  // sequence of the last committed checkpoint
  StepGate gate_;
  RunState run_;
  absl::Time run_heard_ = absl::InfiniteFuture();  // when one of its trainers last said something
  PendingOperations pending_;
  WriteLedger writes_;
  std::map<std::string, std::vector<Proposer>> committing_;
  std::vector<HeldCommit> held_commits_;
  std::map<uint64_t, std::vector<CheckpointFinished>> checkpoints_;  // being written
  bool draining_ = false;
  std::string drain_text_;
  std::vector<Proposer> drainers_;
  std::optional<absl::Status> over_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_OPERATION_ORDER_H_
