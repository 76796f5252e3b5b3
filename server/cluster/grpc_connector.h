// Reaches the coordinator over gRPC.
#ifndef CCS_SERVER_CLUSTER_GRPC_CONNECTOR_H_
#define CCS_SERVER_CLUSTER_GRPC_CONNECTOR_H_

#include <memory>
#include <string>

#include "server/cluster/control_stream.h"

namespace ccs {

// Thread-safe. A stream of its must not be destroyed from its own handlers.
class GrpcConnector : public ControlConnector {
 public:
  // `address`: host:port of rank 0.
  explicit GrpcConnector(std::string address) : address_(std::move(address)) {}

  // UNAVAILABLE, with the address, if no connection is made within `timeout`. A coordinator that refuses the
  // call is reported through on_closed.
  absl::StatusOr<std::unique_ptr<ControlStream>> Connect(ControlHandlers handlers,
                                                         absl::Duration timeout) override;

 private:
  const std::string address_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_GRPC_CONNECTOR_H_
