// The processes of a simulated cluster, and what lies between them.
#ifndef CCS_TESTS_SERVER_SIMULATION_CLUSTER_H_
#define CCS_TESTS_SERVER_SIMULATION_CLUSTER_H_

#include <ccs/v1/cluster.pb.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/cluster/coordinator.h"
#include "tests/server/simulation/model.h"
#include "tests/server/simulation/shard.h"
#include "tests/server/simulation/world.h"

namespace ccs::simulation {

// The real coordinator lives and dies with shard 0.
class Cluster {
 public:
  Cluster(World* world, Model* model, const CoordinatorOptions& options);

  int num_shards() const { return options_.num_shards; }
  // Null while it is down.
  std::shared_ptr<Shard> shard(int rank) const { return shards_[rank]; }
  Disk& disk(int rank) { return disks_[rank]; }

  void StartShard(int rank);
  // The process ends; `noticed`: the other side of its streams hears of it.
  void Crash(int rank, bool noticed);
  // The shard's stream breaks, for both sides.
  void BreakStream(int rank);

  // What shards do. Streams keep their order; 0: nobody answers.
  uint64_t Connect(int rank);
  void ToCoordinator(uint64_t stream, const v1::ShardMessage& message);
  v1::Register Registration(int rank) const;
  // Which coordinator a stream leads to.
  int CoordinatorOf(uint64_t stream) const;
  // `then` gets all ranks' parts, in the order of trainers and ranks, once every rank has come.
  void Exchange(const std::string& name, const std::vector<Part>& parts,
                std::function<void(const std::vector<Part>&)> then);

 private:
  struct Stream {
    int rank = 0;
    std::weak_ptr<Shard> shard;
    std::shared_ptr<Coordinator> coordinator;  // null once it is closed
    int coordinator_number = 0;
    Coordinator::ConnectionId connection = 0;
    absl::Time last_up;
    absl::Time last_down;
  };
  struct Meeting {
    std::vector<Part> parts;
    std::vector<std::function<void(const std::vector<Part>&)>> then;
  };

  void StartCoordinator();
  void Tick();
  // When a message that is sent now arrives behind those before it.
  absl::Time Arrival(absl::Time* last);
  void FromCoordinator(uint64_t number, const v1::CoordinatorMessage& message);
  void Close(uint64_t number);

  World* const world_;
  Model* const model_;
  const CoordinatorOptions options_;
  std::vector<Disk> disks_;
  std::vector<std::shared_ptr<Shard>> shards_;
  std::shared_ptr<Coordinator> coordinator_;
  int coordinators_ = 0;
  std::map<uint64_t, Stream> streams_;
  std::map<std::string, Meeting> meetings_;
};

}  // namespace ccs::simulation

#endif  // CCS_TESTS_SERVER_SIMULATION_CLUSTER_H_
