// The collectives of an epoch as the engine's operations use them.
#ifndef CCS_SERVER_ENGINE_EXCHANGE_H_
#define CCS_SERVER_ENGINE_EXCHANGE_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/cluster/collective.h"

namespace ccs {

// Gives every call the engine's deadline, and turns rows into bytes. Cheap to make; one thread.
class Exchange {
 public:
  Exchange(Collective* collective, absl::Duration timeout)
      : collective_(collective), timeout_(timeout), counts_(collective->size()) {}

  int rank() const { return collective_->rank(); }

  // Concatenates every rank's rows, of `row_bytes` each, in rank order.
  absl::Status GatherRows(const void* send, void* receive, absl::Span<const int> rows_per_rank,
                          size_t row_bytes) {
    SetCounts(rows_per_rank, row_bytes);
    return collective_->AllGather(send, receive, counts_, absl::Now() + timeout_);
  }
  // Every rank sends as many bytes.
  absl::Status GatherEqual(const void* send, void* receive, size_t bytes) {
    counts_.assign(counts_.size(), bytes);
    return collective_->AllGather(send, receive, counts_, absl::Now() + timeout_);
  }
  // One rank sends `bytes`, the others nothing.
  absl::Status Broadcast(int origin, const void* send, void* receive, size_t bytes) {
    counts_.assign(counts_.size(), 0);
    counts_[origin] = bytes;
    return collective_->AllGather(send, receive, counts_, absl::Now() + timeout_);
  }
  // Sums [rows of all ranks, cols] over ranks; each receives its own rows.
  absl::Status ReduceScatterRows(const float* send, float* receive, absl::Span<const int> rows_per_rank,
                                 size_t cols) {
    SetCounts(rows_per_rank, cols);
    return collective_->ReduceScatter(send, receive, counts_, absl::Now() + timeout_);
  }

 private:
  void SetCounts(absl::Span<const int> rows_per_rank, size_t row_size) {
    counts_.clear();
    for (const int rows : rows_per_rank) counts_.push_back(rows * row_size);
  }

  Collective* const collective_;
  const absl::Duration timeout_;
  std::vector<size_t> counts_;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_EXCHANGE_H_
