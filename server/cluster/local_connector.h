// Reaches a coordinator in the same process.
#ifndef CCS_SERVER_CLUSTER_LOCAL_CONNECTOR_H_
#define CCS_SERVER_CLUSTER_LOCAL_CONNECTOR_H_

#include <memory>

#include "server/cluster/control_stream.h"
#include "server/cluster/coordinator.h"

namespace ccs {

// Thread-safe. Each stream has a thread that delivers what the coordinator sends. The coordinator outlives
// the connector and its streams.
class LocalConnector : public ControlConnector {
 public:
  explicit LocalConnector(Coordinator* coordinator) : coordinator_(coordinator) {}

  absl::StatusOr<std::unique_ptr<ControlStream>> Connect(ControlHandlers handlers,
                                                         absl::Duration timeout) override;

 private:
  Coordinator* const coordinator_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_LOCAL_CONNECTOR_H_
