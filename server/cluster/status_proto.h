// absl::Status in messages, with its typed details.
#ifndef CCS_SERVER_CLUSTER_STATUS_PROTO_H_
#define CCS_SERVER_CLUSTER_STATUS_PROTO_H_

#include <ccs/v1/cluster.pb.h>

#include "absl/status/status.h"

namespace ccs {

v1::StatusMessage StatusToProto(const absl::Status& status);
// A code outside absl's range becomes UNKNOWN.
absl::Status StatusFromProto(const v1::StatusMessage& proto);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_STATUS_PROTO_H_
