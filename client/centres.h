// Reading and writing rows at the shards that own them.
#ifndef CCS_CLIENT_CENTRES_H_
#define CCS_CLIENT_CENTRES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cluster.h"

namespace ccs::client {

// The semantics are those of Client::ReadCentres and Client::WriteCentres.
absl::StatusOr<std::vector<float>> ReadCentres(const Cluster& cluster, absl::Span<const int64_t> class_ids);
absl::Status WriteCentres(const Cluster& cluster, absl::Span<const int64_t> class_ids,
                          absl::Span<const float> centres);

}  // namespace ccs::client

#endif  // CCS_CLIENT_CENTRES_H_
