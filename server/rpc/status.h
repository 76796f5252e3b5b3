// absl::Status to grpc::Status: the one place where the two meet.
#ifndef CCS_SERVER_RPC_STATUS_H_
#define CCS_SERVER_RPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace ccs {

// Code and message as they are; an ErrorInfo becomes an ErrorDetail inside a RichStatus in
// "grpc-status-details-bin", which is laid out as google.rpc.Status.
grpc::Status ToGrpcStatus(const absl::Status& status);

// "OK", "INVALID_ARGUMENT", ...
std::string CodeName(absl::StatusCode code);

// The word an error is counted under: its ErrorInfo's reason, else its code in small letters.
std::string RejectReason(const absl::Status& status);

}  // namespace ccs

#endif  // CCS_SERVER_RPC_STATUS_H_
