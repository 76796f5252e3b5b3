// The stream between one shard and the coordinator, whatever carries it.
#ifndef CCS_SERVER_CLUSTER_CONTROL_STREAM_H_
#define CCS_SERVER_CLUSTER_CONTROL_STREAM_H_

#include <ccs/v1/cluster.pb.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ccs {

// A shard's end. Messages arrive in order on one thread at a time through the handlers given to Connect.
// Thread-safe; Send never blocks. After on_closed no handler runs again; the destructor waits for a handler
// that is running.
class ControlStream {
 public:
  virtual ~ControlStream() = default;
  virtual void Send(v1::ShardMessage message) = 0;
};

struct ControlHandlers {
  std::function<void(v1::CoordinatorMessage)> on_message;
  std::function<void(absl::Status)> on_closed;  // once
};

// How a shard reaches the coordinator: over gRPC, or directly in one process.
class ControlConnector {
 public:
  virtual ~ControlConnector() = default;
  // UNAVAILABLE if nobody answers within `timeout`.
  virtual absl::StatusOr<std::unique_ptr<ControlStream>> Connect(ControlHandlers handlers,
                                                                 absl::Duration timeout) = 0;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_CONTROL_STREAM_H_
