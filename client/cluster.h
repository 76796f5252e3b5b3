// What the client knows of a cluster, and the stubs of its shards.
#ifndef CCS_CLIENT_CLUSTER_H_
#define CCS_CLIENT_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ccs/v1/training.grpc.pb.h"
#include "client/include/ccs/client/client.h"
#include "client/stubs.h"

namespace ccs::client {

using Training = ccs::v1::Training;

// Thread-safe: immutable, but for where the shards are. Calls refer to it, and it outlives them.
struct Cluster {
  ClusterInfo info;
  int64_t max_batch = 0;               // rows of a step, an evaluation or a query
  absl::Duration timeout;              // of every call
  std::vector<std::string> addresses;  // those that the user gave
  Stubs<Training> shards;              // by rank
  Stubs<Training> entrances;           // by address

  SendOptions Deadline() const {
    return {.deadline = DeadlineAfter(timeout),
            .look_again = [this](Clock::time_point deadline) { LookAgain(deadline); }};
  }

 private:
  // Finds shards that have come back elsewhere, if anybody answers who knows.
  void LookAgain(Clock::time_point deadline) const;
};

Position ToPosition(const ccs::v1::Position& position);

// INTERNAL if the layout does not hold together. `addresses`: those that the user gave.
absl::StatusOr<std::shared_ptr<const Cluster>> MakeCluster(const ccs::v1::ModelSpec& spec,
                                                           const ccs::v1::Layout& layout,
                                                           const ccs::v1::Position& position,
                                                           const std::string& version, absl::Duration timeout,
                                                           const std::vector<std::string>& addresses);

}  // namespace ccs::client

#endif  // CCS_CLIENT_CLUSTER_H_
