// Centres that clients have sent and not yet committed.
#ifndef CCS_SERVER_ENGINE_STAGED_WRITES_H_
#define CCS_SERVER_ENGINE_STAGED_WRITES_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ccs {

// Rows of this shard by write id and class id. Thread-safe.
class StagedWrites {
 public:
  // Holds at most `limit_bytes` of rows of `dim` floats.
  StagedWrites(int dim, int64_t limit_bytes);

  // Adds rows, replacing those of the same class under the same id. Returns the rows staged under the id.
  // RESOURCE_EXHAUSTED, with both numbers, over the limit.
  absl::StatusOr<int64_t> Add(const std::string& write_id, absl::Span<const int64_t> class_ids,
                              absl::Span<const float> centres /* [class_ids, dim] */);
  // Takes all rows of an id, by class id; empty if there are none.
  std::map<int64_t, std::vector<float>> Take(const std::string& write_id);
  void Clear();

 private:
  const int dim_;
  const int64_t limit_bytes_;
  std::mutex mutex_;
  int64_t bytes_ = 0;
  std::map<std::string, std::map<int64_t, std::vector<float>>> writes_;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_STAGED_WRITES_H_
