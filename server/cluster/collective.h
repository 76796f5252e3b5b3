// How shards exchange arrays. Implemented over Gloo, by nothing for one shard alone, later over NCCL.
#ifndef CCS_SERVER_CLUSTER_COLLECTIVE_H_
#define CCS_SERVER_CLUSTER_COLLECTIVE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ccs {

// The collectives of one epoch of the shard group.
//
// Every rank must issue the same calls in the same order with the same counts; one thread issues them.
// Abort() may come from any thread at any time: it makes the call in progress and all later ones return
// UNAVAILABLE. A call that misses `deadline` returns DEADLINE_EXCEEDED, a peer that went away UNAVAILABLE;
// after any error the object is of no further use and output buffers are undefined.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Concatenates every rank's bytes in rank order. `send`: bytes_per_rank[rank()] bytes; `receive`: the sum
  // of bytes_per_rank. Counts may be zero. The buffers do not overlap.
  virtual absl::Status AllGather(const void* send, void* receive, absl::Span<const size_t> bytes_per_rank,
                                 absl::Time deadline) = 0;

  // Every rank brings an array of sum(counts) floats, split into one segment a rank; rank r receives the sum
  // over ranks of segment r, added in rank order, so that the bits do not depend on timing. `receive`:
  // counts[rank()] floats, not overlapping `send`.
  virtual absl::Status ReduceScatter(const float* send, float* receive, absl::Span<const size_t> counts,
                                     absl::Time deadline) = 0;

  virtual void Abort() = 0;
};

// Gives every rank every rank's blob, in rank order; what a new group needs to find one another. Blocking.
using Rendezvous =
    std::function<absl::StatusOr<std::vector<std::string>>(std::string own_blob, absl::Time deadline)>;

struct CollectiveOptions {
  int rank = 0;
  int size = 1;
  // Address of the network interface that peers can reach; empty: the one of the host's name.
  std::string host;
  absl::Time deadline;  // for connecting
};

// One shard alone gets a collective that only copies; more get Gloo over TCP.
absl::StatusOr<std::unique_ptr<Collective>> MakeCpuCollective(const CollectiveOptions& options,
                                                              const Rendezvous& rendezvous);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_COLLECTIVE_H_
