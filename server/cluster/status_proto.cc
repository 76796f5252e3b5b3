#include "server/cluster/status_proto.h"

#include <optional>

#include "server/engine/error_info.h"

namespace ccs {

v1::StatusMessage StatusToProto(const absl::Status& status) {
  v1::StatusMessage proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(std::string(status.message()));
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  if (!info) return proto;
  v1::ErrorDetail* detail = proto.mutable_detail();
  detail->set_reason(info->reason);
  detail->set_expected_step(info->expected_step);
  detail->mutable_missing_trainers()->Assign(info->missing_trainers.begin(), info->missing_trainers.end());
  if (info->position) {
    detail->mutable_position()->set_lineage(info->position->lineage);
    detail->mutable_position()->set_step(info->position->step);
  }
  return proto;
}

absl::Status StatusFromProto(const v1::StatusMessage& proto) {
  // absl maps raw codes that it does not know to UNKNOWN only when asked for the code; do it at once.
  const int code = proto.code();
  const bool known = code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      proto.message());
  if (status.ok() || !proto.has_detail()) return status;
  const v1::ErrorDetail& detail = proto.detail();
  ErrorInfo info;
  info.reason = detail.reason();
  info.expected_step = detail.expected_step();
  info.missing_trainers.assign(detail.missing_trainers().begin(), detail.missing_trainers().end());
  if (detail.has_position()) info.position = Position{detail.position().lineage(), detail.position().step()};
  return WithErrorInfo(status, info);
}

}  // namespace ccs
