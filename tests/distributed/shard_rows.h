// A shard's rows, momentum included, which the client library does not read.
#ifndef CCS_TESTS_DISTRIBUTED_SHARD_ROWS_H_
#define CCS_TESTS_DISTRIBUTED_SHARD_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ccs::testing {

struct ShardRows {
  uint64_t lineage = 0;
  int64_t step = 0;
  std::vector<float> weight;    // [count, dim]
  std::vector<float> momentum;  // [count, dim]
};

// The shard at `address` owns the classes.
absl::StatusOr<ShardRows> ReadShardRows(const std::string& address, int64_t class_start, int64_t count,
                                        absl::Duration timeout = absl::Seconds(10));

}  // namespace ccs::testing

#endif  // CCS_TESTS_DISTRIBUTED_SHARD_ROWS_H_
