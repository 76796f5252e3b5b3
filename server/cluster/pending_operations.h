// Operations that every shard must finish before anybody is told.
#ifndef CCS_SERVER_CLUSTER_PENDING_OPERATIONS_H_
#define CCS_SERVER_CLUSTER_PENDING_OPERATIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace ccs {

// What each rank said of one operation.
struct OperationOutcome {
  struct Rank {
    absl::Status status;
    int64_t bytes = 0;
  };
  std::vector<Rank> ranks;

  // The first failure, with its rank; OK if there is none.
  absl::Status status() const;
  bool failed_everywhere() const;
};

// Not thread-safe.
class PendingOperations {
 public:
  using Finished = std::function<void(const OperationOutcome&)>;

  explicit PendingOperations(int num_shards) : num_shards_(num_shards) {}

  // `finished` runs once, from the last rank's Done.
  void Await(uint64_t sequence, Finished finished);
  // Ranks that have spoken already and sequences that nobody awaits are left out.
  void Done(int rank, uint64_t sequence, const absl::Status& status, int64_t bytes);

 private:
  struct Pending {
    std::vector<std::optional<OperationOutcome::Rank>> ranks;
    int missing;
    Finished finished;
  };

  const int num_shards_;
  std::map<uint64_t, Pending> pending_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_PENDING_OPERATIONS_H_
