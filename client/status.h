// gRPC's status and the protocol's error detail, turned into absl::Status.
#ifndef CCS_CLIENT_STATUS_H_
#define CCS_CLIENT_STATUS_H_

#include <grpcpp/support/status.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ccs/v1/training.pb.h"

namespace ccs::client {

// The same code; the message gets the place first ("shard 1 (host:8001): ..."); the detail, if there is one,
// becomes a payload.
absl::Status FromGrpc(const grpc::Status& status, absl::string_view place);

// The detail that FromGrpc attached.
std::optional<ccs::v1::ErrorDetail> DetailOf(const absl::Status& status);

// The same code and payload with `suffix` after the message.
absl::Status Append(const absl::Status& status, absl::string_view suffix);

// The status that tells most about why a request of several parts failed, e.g. a refusal rather than a
// time-out of the parts that waited for it. OK if all are OK. Requires at least one.
const absl::Status& MostInformative(absl::Span<const absl::Status> statuses);

}  // namespace ccs::client

#endif  // CCS_CLIENT_STATUS_H_
