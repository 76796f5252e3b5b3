// One shard with all its real parts in this process, reached over gRPC without a port.
#ifndef CCS_TESTS_SERVER_RPC_ONE_SHARD_H_
#define CCS_TESTS_SERVER_RPC_ONE_SHARD_H_

#include <ccs/v1/admin.grpc.pb.h>
#include <ccs/v1/training.grpc.pb.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "server/cluster/coordinator.h"
#include "server/cluster/coordinator_ticker.h"
#include "server/cluster/local_connector.h"
#include "server/cluster/member.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/rpc_server.h"
#include "server/rpc/training_service.h"
#include "server/storage/checkpoint_store.h"

namespace ccs::testing {

struct OneShardOptions {
  v1::ModelSpec spec;
  std::filesystem::path checkpoint_dir;  // empty: none
};

// Its services answer UNAVAILABLE until Open.
class OneShard {
 public:
  explicit OneShard(const OneShardOptions& options);
  ~OneShard();

  // Opens the services and waits until the shard serves; false if it does not within 10 s.
  bool Open();

  v1::Training::Stub& training() { return *training_stub_; }
  v1::Admin::Stub& admin() { return *admin_stub_; }
  std::string metrics() const { return metrics_.Text(); }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  RpcServer& server() { return *server_; }

 private:
  const ModelSpec spec_;
  Metrics metrics_;
  std::unique_ptr<kernels::ShardBackend> backend_;
  Coordinator coordinator_;
  CoordinatorTicker ticker_;
  LocalConnector connector_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  StagedWrites staged_writes_;
  Member member_;
  StepAssembler assembler_;
  Engine engine_;
  ServiceContext context_;
  TrainingService training_{&metrics_};
  AdminService admin_{&metrics_};
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Training::Stub> training_stub_;
  std::unique_ptr<v1::Admin::Stub> admin_stub_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_SERVER_RPC_ONE_SHARD_H_
