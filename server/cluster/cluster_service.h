// The coordinator over gRPC.
#ifndef CCS_SERVER_CLUSTER_CLUSTER_SERVICE_H_
#define CCS_SERVER_CLUSTER_CLUSTER_SERVICE_H_

#include <ccs/v1/cluster.grpc.pb.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "server/cluster/coordinator.h"

namespace ccs {

// Every Join stream is a connection of the coordinator, which outlives the service. Thread-safe.
//
// Call Close before the gRPC server's Shutdown, which otherwise waits for the streams to end by themselves.
class ClusterService final : public v1::Cluster::CallbackService {
 public:
  explicit ClusterService(Coordinator* coordinator) : coordinator_(coordinator) {}
  // Closes, and waits until the last stream has gone.
  ~ClusterService() override;

  // Ends every stream with UNAVAILABLE, what is still to be sent first, and refuses new ones.
  void Close();

  grpc::ServerBidiReactor<v1::ShardMessage, v1::CoordinatorMessage>* Join(
      grpc::CallbackServerContext* context) override;

 private:
  class Stream;

  Coordinator* const coordinator_;
  std::mutex mutex_;
  std::condition_variable empty_;
  std::set<Stream*> streams_;
  bool closing_ = false;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_CLUSTER_SERVICE_H_
