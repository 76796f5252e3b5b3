// A whole cluster as threads of one process, without gRPC, so that the thread sanitizer sees all of it.
#ifndef CCS_TESTS_TESTING_IN_PROCESS_CLUSTER_H_
#define CCS_TESTS_TESTING_IN_PROCESS_CLUSTER_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cluster/coordinator.h"
#include "server/cluster/coordinator_ticker.h"
#include "server/cluster/local_connector.h"
#include "server/engine/engine.h"
#include "server/storage/checkpoint_store.h"
#include "tests/testing/in_process_collective.h"

namespace ccs::testing {

struct InProcessClusterOptions {
  int num_shards = 1;
  v1::ModelSpec spec;
  // Opens the disk of a shard that starts; null: no checkpoints.
  std::function<std::shared_ptr<CheckpointStore>(int rank)> open_checkpoints;
  // The same for its step log; null: none is kept.
  std::function<std::shared_ptr<StepLog>(int rank)> open_log;
  int64_t checkpoint_interval_steps = 0;
  ResumePolicy resume;
  absl::Duration step_timeout = absl::Seconds(30);
  // Local rows by rank and step, instead of the sampler's.
  std::function<std::vector<int64_t>(int rank, int64_t step)> sampled_rows;
};

// What a caller waits for. Get fails with DEADLINE_EXCEEDED after a time that no test should need.
template <typename T>
class Pending {
 public:
  std::function<void(absl::StatusOr<T>)> done() {
    return [promise = promise_](absl::StatusOr<T> value) { promise->set_value(std::move(value)); };
  }
  absl::StatusOr<T> Get() {
    if (future_.wait_for(std::chrono::seconds(50)) != std::future_status::ready) {
      return absl::DeadlineExceededError("the test has waited too long");
    }
    return future_.get();
  }

 private:
  std::shared_ptr<std::promise<absl::StatusOr<T>>> promise_ =
      std::make_shared<std::promise<absl::StatusOr<T>>>();
  std::shared_future<absl::StatusOr<T>> future_ = promise_->get_future().share();
};

using PendingSlice = Pending<std::shared_ptr<const SliceReply>>;

// Real engines, assemblers, members, CPU backends, checkpoint stores and a real coordinator; the collectives
// are in the process. Call order: construct, WaitServing, anything. Thread-safe but for Kill and Start.
class InProcessCluster {
 public:
  explicit InProcessCluster(InProcessClusterOptions options);
  ~InProcessCluster();

  int num_shards() const { return options_.num_shards; }
  // Returns once all shards serve an epoch above this one; a DEADLINE_EXCEEDED names their states.
  absl::Status WaitServing(uint64_t above_epoch = 0);
  // The group's present or last one.
  uint64_t epoch();

  // Faults. A killed shard's memory is gone; the coordinator stays.
  void Kill(int rank);
  void Start(int rank);
  // Consulted before every collective call of every group from now on; null: no faults.
  void SetCollectiveFault(CollectiveFaultHook hook);

  // What the RPC layer of `rank` does.
  absl::StatusOr<v1::Result> Propose(int rank, v1::Propose proposal);
  absl::StatusOr<v1::OpenRunReply> OpenRun(int rank, const std::string& run_id, int trainer, int num_trainers,
                                           uint64_t start_nonce);
  PendingSlice Submit(int rank, Slice slice);
  absl::StatusOr<EvaluateResult> Evaluate(int rank, std::vector<float> features, std::vector<int64_t> labels,
                                          std::optional<double> sample_rate);
  absl::StatusOr<NearestResult> Nearest(int rank, std::vector<float> queries, int k);
  // Rows of any shards, gathered from their owners.
  absl::StatusOr<CentreRows> ReadCentres(const std::vector<int64_t>& class_ids);
  absl::StatusOr<CentreRows> ReadAllCentres();
  // Stages at the owners.
  absl::Status StageCentres(const std::string& write_id, const std::vector<int64_t>& class_ids,
                            const std::vector<float>& centres);
  absl::StatusOr<v1::Result> CommitCentres(int rank, const std::string& write_id, int64_t rows);
  absl::StatusOr<v1::Result> Checkpoint(int rank);
  absl::Status Drain(int rank);
  Position position(int rank) const;

 private:
  struct Shard;
  using Group = std::vector<std::unique_ptr<Collective>>;

  absl::StatusOr<std::unique_ptr<Collective>> Meet(int rank, absl::Time deadline,
                                                   const Rendezvous& rendezvous);
  int OwnerOf(int64_t class_id) const;

  const InProcessClusterOptions options_;
  std::string canonical_spec_;
  ModelSpec spec_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<LocalConnector> connector_;
  std::unique_ptr<CoordinatorTicker> ticker_;

  std::mutex mutex_;
  CollectiveFaultHook fault_;
  int meetings_ = 0;
  std::map<std::string, Group> groups_;  // by what the rendezvous gave all of its ranks

  std::vector<std::unique_ptr<Shard>> shards_;  // null: killed
};

// The rows of one trainer for one step.
struct TrainerBatch {
  std::vector<float> features;  // [labels, dim]
  std::vector<int64_t> labels;
};

struct TrainerReply {
  double loss = 0;
  std::vector<float> feature_grad;  // [labels, dim]
};

// The trainers of one run, as the client library behaves: rows split over home shards, gradient_scale 1.
class InProcessTrainers {
 public:
  InProcessTrainers(InProcessCluster* cluster, int num_trainers, int dim, std::string run_id = "run");

  // (Re)opens the run for one trainer, or for all.
  absl::Status Open(int trainer);
  absl::Status Open();

  // One trainer's slices, by home shard, of the step after position().
  std::vector<std::pair<int, Slice>> Slices(int trainer, const TrainerBatch& batch,
                                            const StepParams& params) const;
  // Sends one trainer's slices and puts the answers together; the first error, or, as a test of the service,
  // INTERNAL if its shards report different losses.
  std::vector<PendingSlice> Send(int trainer, const TrainerBatch& batch, const StepParams& params);
  static absl::StatusOr<TrainerReply> Receive(std::vector<PendingSlice> slices);

  // All trainers take a step. position() moves on if all succeed.
  std::vector<absl::StatusOr<TrainerReply>> Step(const std::vector<TrainerBatch>& batches,
                                                 const StepParams& params);

  const Position& position() const { return position_; }
  void set_position(Position position) { position_ = position; }
  // The trainers live on while their cluster is started anew.
  void set_cluster(InProcessCluster* cluster) { cluster_ = cluster; }
  // How long a slice waits for Go.
  void set_wait(absl::Duration wait) { wait_ = wait; }

 private:
  InProcessCluster* cluster_;
  const int num_trainers_;
  const int dim_;
  const std::string run_id_;
  uint64_t starts_ = 0;
  absl::Duration wait_ = absl::Seconds(40);
  std::vector<uint64_t> incarnations_;
  Position position_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_IN_PROCESS_CLUSTER_H_
