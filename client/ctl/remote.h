// The operator's view of a cluster: any of its shards, over gRPC.
#ifndef CCS_CLIENT_CTL_REMOTE_H_
#define CCS_CLIENT_CTL_REMOTE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ccs/v1/admin.grpc.pb.h"
#include "ccs/v1/training.grpc.pb.h"
#include "client/include/ccs/client/client.h"
#include "client/stubs.h"

namespace ccs::client {

// A cluster that has answered once. Every call goes to any of the addresses and returns within the timeout.
class Remote {
 public:
  // Asks every address once for the cluster's status, so that an absent cluster is reported without waiting.
  static absl::StatusOr<Remote> Reach(const ClientOptions& options);

  const ccs::v1::StatusReply& status() const { return status_; }  // when reached

  absl::StatusOr<ccs::v1::ListCheckpointsReply> ListCheckpoints() const;
  absl::StatusOr<ccs::v1::CheckpointReply> Checkpoint() const;
  absl::Status ReleaseCheckpoint(const ccs::v1::CheckpointId& id) const;
  absl::Status CloseRun(const std::string& run_id) const;
  absl::StatusOr<std::unique_ptr<Client>> Connect() const { return Client::Connect(options_); }

 private:
  explicit Remote(const ClientOptions& options);

  ClientOptions options_;
  Stubs<ccs::v1::Admin> admin_;
  Stubs<ccs::v1::Training> training_;
  ccs::v1::StatusReply status_;
};

}  // namespace ccs::client

#endif  // CCS_CLIENT_CTL_REMOTE_H_
