#include "server/rpc/rpc_server.h"

#include <ccs/v1/admin.grpc.pb.h>
#include <ccs/v1/training.grpc.pb.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ccs {
namespace {

// Both are switches of the whole process, which gRPC reads when a server is built.
void EnablePlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                            const std::vector<grpc::Service*>& services) {
  EnablePlugins();
  grpc::ServerBuilder builder;
  int port = 0;
  if (!options.listen.empty()) {
    builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  }
  // Otherwise a second server on the same address would take half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A trainer that waits for a step pings more often than gRPC's default of once in five minutes allows.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options.listen,
                                               ": is the address this host's, and the port free?"));
  }
  std::unique_ptr<RpcServer> result(new RpcServer(std::move(server), port));
  result->SetServing(false);
  result->server_->GetHealthCheckService()->SetServingStatus(v1::Admin::service_full_name(), true);
  return result;
}

RpcServer::RpcServer(std::unique_ptr<grpc::Server> server, int port)
    : server_(std::move(server)), port_(port) {}

RpcServer::~RpcServer() { Shutdown(absl::Now()); }

std::shared_ptr<grpc::Channel> RpcServer::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  return server_->InProcessChannel(arguments);
}

void RpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus(v1::Training::service_full_name(), serving);
}

void RpcServer::Shutdown(absl::Time deadline) {
  server_->Shutdown(absl::ToChronoTime(deadline));
  server_->Wait();
}

}  // namespace ccs
