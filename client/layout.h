// Who is home to which of a trainer's rows, and who owns which class: arithmetic only.
#ifndef CCS_CLIENT_LAYOUT_H_
#define CCS_CLIENT_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/include/ccs/client/client.h"

namespace ccs::client {

// A trainer's rows [first_row, first_row + rows) that go to one of its home shards.
struct Part {
  int shard = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

// The parts of a step of `rows` rows, one for every home shard of the trainer, those without rows included:
// a home shard must hear of every step. Requires 0 <= trainer_rank < num_trainers and num_shards > 0.
std::vector<Part> SplitRows(int trainer_rank, int num_trainers, int num_shards, int64_t rows);

// OK if `shards` are in rank order and their ranges cover [0, num_classes) without gap or overlap, empty
// ranges included. Else INTERNAL.
absl::Status ValidateShards(absl::Span<const Shard> shards, int64_t num_classes);

// The class ids of one request, all owned by one shard. `rows` are their places in the caller's list.
struct OwnedRows {
  int shard = 0;
  std::vector<int64_t> rows;
};

// Splits class_ids by owner, in pieces of at most `max_rows`; the order within an owner is kept. Requires
// validated shards and every id within their ranges.
std::vector<OwnedRows> GroupByOwner(absl::Span<const Shard> shards, absl::Span<const int64_t> class_ids,
                                    int64_t max_rows);

}  // namespace ccs::client

#endif  // CCS_CLIENT_LAYOUT_H_
