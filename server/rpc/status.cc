#include "server/rpc/status.h"

#include <ccs/v1/training.pb.h>

#include <optional>

#include "absl/strings/ascii.h"
#include "server/cluster/status_proto.h"
#include "server/engine/error_info.h"

namespace ccs {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const v1::StatusMessage message = StatusToProto(status);
  const auto code = static_cast<grpc::StatusCode>(message.code());
  if (!message.has_detail()) return grpc::Status(code, message.message());

  v1::RichStatus rich;
  rich.set_code(message.code());
  rich.set_message(message.message());
  rich.add_details()->PackFrom(message.detail());
  return grpc::Status(code, message.message(), rich.SerializeAsString());
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

std::string RejectReason(const absl::Status& status) {
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  if (info && !info->reason.empty()) return info->reason;
  return absl::AsciiStrToLower(CodeName(status.code()));
}

}  // namespace ccs
