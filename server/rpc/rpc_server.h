// The gRPC server of one shard.
#ifndef CCS_SERVER_RPC_RPC_SERVER_H_
#define CCS_SERVER_RPC_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ccs {

struct RpcServerOptions {
  std::string listen;  // host:port; port 0: any; empty: none, for channels within the process alone
  int64_t max_message_bytes = int64_t{16} << 20;
};

// Serves the given services, gRPC's health service and reflection, in plaintext. Health says SERVING for ""
// and "ccs.v1.Training" while SetServing says so, NOT_SERVING at first; for "ccs.v1.Admin" it says SERVING as
// long as the server answers. Thread-safe.
class RpcServer {
 public:
  // `services` outlive the server. UNAVAILABLE names an address that cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options,
                                                          const std::vector<grpc::Service*>& services);
  // As Shutdown, at once.
  ~RpcServer();

  int port() const { return port_; }
  // A channel to this server within the process, without a socket.
  std::shared_ptr<grpc::Channel> InProcessChannel();
  void SetServing(bool serving);
  // Takes no new calls; those in progress have until `deadline` to end, then they are cancelled. Returns when
  // all have been answered.
  void Shutdown(absl::Time deadline);

 private:
  explicit RpcServer(std::unique_ptr<grpc::Server> server, int port);

  std::unique_ptr<grpc::Server> server_;
  const int port_;
};

}  // namespace ccs

#endif  // CCS_SERVER_RPC_RPC_SERVER_H_
