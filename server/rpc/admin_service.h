// The Admin service: what an operator calls.
#ifndef CCS_SERVER_RPC_ADMIN_SERVICE_H_
#define CCS_SERVER_RPC_ADMIN_SERVICE_H_

#include <ccs/v1/admin.grpc.pb.h>

#include <memory>

#include "server/rpc/service_context.h"

namespace ccs {

// Everything comes from the coordinator, except that Status tells what this shard knows itself while there is
// none to ask. Methods are described in admin.proto. Thread-safe.
class AdminService final : public v1::Admin::CallbackService {
 public:
  // `metrics` outlives the service.
  explicit AdminService(Metrics* metrics) : runner_(metrics) {}

  // Calls are UNAVAILABLE before. Once. What the context points to outlives the server.
  void Open(const ServiceContext& context);

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest* request,
                                   v1::StatusReply* reply) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsReply* reply) override;
  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context,
                                       const v1::CheckpointRequest* request,
                                       v1::CheckpointReply* reply) override;
  grpc::ServerUnaryReactor* ReleaseCheckpoint(grpc::CallbackServerContext* context,
                                              const v1::ReleaseCheckpointRequest* request,
                                              v1::ReleaseCheckpointReply* reply) override;

 private:
  std::unique_ptr<const ServiceContext> context_;
  MethodRunner runner_;
};

}  // namespace ccs

#endif  // CCS_SERVER_RPC_ADMIN_SERVICE_H_
