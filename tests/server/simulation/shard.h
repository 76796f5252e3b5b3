// One shard of a simulated cluster: the real assembler, ledger, change records and log around toy arithmetic.
#ifndef CCS_TESTS_SERVER_SIMULATION_SHARD_H_
#define CCS_TESTS_SERVER_SIMULATION_SHARD_H_

#include <ccs/v1/cluster.pb.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/change.h"
#include "server/engine/control_plane.h"
#include "server/engine/ledger.h"
#include "server/engine/step_assembler.h"
#include "tests/server/simulation/model.h"
#include "tests/server/simulation/world.h"
#include "tests/testing/memory_step_log.h"

namespace ccs::simulation {

class Cluster;

// What stays when the process dies.
struct Disk {
  struct Checkpoint {
    CheckpointHeader header;
    std::string ledger;
    Rows rows;
  };
  std::unique_ptr<testing::MemoryStepLog> log = std::make_unique<testing::MemoryStepLog>();
  std::map<CheckpointId, Checkpoint> checkpoints;
};

// Owned by shared_ptr; what is to happen to it is forgotten when it dies. The order of things is that of
// Member and Engine.
class Shard : public ControlPlane, public std::enable_shared_from_this<Shard> {
 public:
  using Proposed = std::function<void(const absl::StatusOr<v1::Result>&)>;

  Shard(World* world, Cluster* cluster, Model* model, Disk* disk, int rank, int num_shards, int keep);

  // Connects, and from then on beats.
  void Start();
  void FromCoordinator(uint64_t stream, const v1::CoordinatorMessage& message);
  void StreamLost(uint64_t stream);
  // Nothing happens here until then; what comes meanwhile comes then.
  void StopUntil(absl::Time when) { stopped_until_ = std::max(stopped_until_, when); }

  // What trainers and clients ask. `done` may never be called if the shard dies.
  void Submit(Slice slice, StepAssembler::Done done);
  void Propose(v1::Propose proposal, Proposed done);
  void Stage(const std::string& write_id);

  uint64_t stream() const { return stream_; }
  const Rows& rows() const { return rows_; }
  const Position& position() const { return position_; }
  bool serving() const { return serving_; }

 private:
  // ControlPlane
  void SliceReady(const Slice& slice, int version, int attempt) override;
  void WriteStaged(const std::string& write_id, int64_t rows) override;
  void Formed(uint64_t epoch, const absl::StatusOr<FormedState>& state) override;
  void OperationDone(uint64_t sequence, const absl::Status& status, int64_t bytes) override;
  void EpochFailed(const absl::Status& status) override;

  // In this life, and where `in_epoch`, in this epoch.
  void Then(absl::Duration delay, bool in_epoch, std::function<void()> what);
  void Send(const v1::ShardMessage& message);
  void Beat();
  void Connect();
  void Register();
  void EndEpoch(const absl::Status& status);

  void TakeMessages();
  void Handle(const v1::CoordinatorMessage& message);
  void OnForm(const v1::Form& form);
  void OnGo(const v1::Go& go);
  void OnResult(const v1::Result& result);
  void OnCommitted(const CheckpointId& id);

  void BringAbout();
  absl::Status LoadBase();
  void ReplayFrom(size_t stretch);
  void Settle();
  void BeginLineage(uint64_t lineage);

  // Its name among those of all coordinators.
  std::string Epoch() const;
  struct Ordered {
    uint64_t sequence = 0;
    Operation operation;
  };
  void Enqueue(uint64_t sequence, Operation operation);
  void RunNext();
  void Execute(const Ordered& ordered);
  void ExecuteStep(uint64_t sequence, const StepOperation& step);
  void TakeStep(const std::string& exchange, const StepOperation& step, bool is_replay,
                std::function<void()> then);
  // Logged on every shard before `then`.
  void ChangeEverywhere(uint64_t sequence, Change change, std::function<void()> then);
  void CommitWrite(const CommittedWrite& write);
  void ChangeRun(const RunState& run);
  void Arrive(const Position& position);
  Position NextPosition(int64_t step) const { return {position_.lineage, step, position_.index + 1}; }

  void StartCheckpoint(uint64_t sequence, const CheckpointId& id, bool kept);
  void FinishCheckpoint();

  World* const world_;
  Cluster* const cluster_;
  Model* const model_;
  Disk* const disk_;
  const int rank_;
  const int num_shards_;
  const int keep_;
  const uint64_t process_nonce_;
  StepAssembler assembler_;
  absl::Time stopped_until_ = absl::InfinitePast();

  uint64_t stream_ = 0;  // 0: none
  std::deque<std::pair<uint64_t, v1::CoordinatorMessage>> inbox_;
  uint64_t heartbeats_ = 0;
  bool has_served_ = false;
  bool serving_ = false;
  uint64_t generation_ = 0;  // of epochs; grows at each end
  EpochPlan plan_;
  uint64_t token_ = 0;
  std::map<uint64_t, Proposed> proposals_;
  std::map<std::string, int> staged_;

  bool busy_ = false;
  std::deque<Ordered> queue_;
  std::optional<Position> memory_;
  Position position_;
  Rows rows_;
  Ledger ledger_;

  struct Saving {
    uint64_t sequence = 0;
    uint64_t generation = 0;
    uint64_t number = 0;
    Disk::Checkpoint checkpoint;
  };
  std::optional<Saving> saving_;
  uint64_t savings_ = 0;
};

}  // namespace ccs::simulation

#endif  // CCS_TESTS_SERVER_SIMULATION_SHARD_H_
