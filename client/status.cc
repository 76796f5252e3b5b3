#include "client/status.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/include/ccs/client/client.h"

namespace ccs::client {
namespace {

constexpr char kDetailUrl[] = "type.googleapis.com/ccs.v1.ErrorDetail";

std::optional<ccs::v1::ErrorDetail> ParseDetail(const grpc::Status& status) {
  ccs::v1::RichStatus rich;
  if (!rich.ParseFromString(status.error_details())) return std::nullopt;
  for (const google::protobuf::Any& any : rich.details()) {
    ccs::v1::ErrorDetail detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

// Larger tells more.
int Information(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kCancelled:  // another part failed
      return 1;
    case absl::StatusCode::kUnavailable:
      return 2;
    case absl::StatusCode::kDeadlineExceeded:
      return DetailOf(status).has_value() ? 4 : 3;
    case absl::StatusCode::kAborted:
      return 6;
    default:
      return 5;
  }
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status, absl::string_view place) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(place, ": ", status.error_message()));
  if (const auto detail = ParseDetail(status))
    result.SetPayload(kDetailUrl, absl::Cord(detail->SerializeAsString()));
  return result;
}

std::optional<ccs::v1::ErrorDetail> DetailOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kDetailUrl);
  ccs::v1::ErrorDetail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

absl::Status Append(const absl::Status& status, absl::string_view suffix) {
  absl::Status result(status.code(), absl::StrCat(status.message(), suffix));
  status.ForEachPayload(
      [&result](absl::string_view url, const absl::Cord& payload) { result.SetPayload(url, payload); });
  return result;
}

const absl::Status& MostInformative(absl::Span<const absl::Status> statuses) {
  return *std::max_element(
      statuses.begin(), statuses.end(),
      [](const absl::Status& a, const absl::Status& b) { return Information(a) < Information(b); });
}

std::optional<Position> PositionFromStatus(const absl::Status& status) {
  const auto detail = DetailOf(status);
  if (!detail.has_value() || !detail->has_position()) return std::nullopt;
  return Position{.lineage = detail->position().lineage(), .step = detail->position().step()};
}

}  // namespace ccs::client
