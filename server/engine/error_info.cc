#include "server/engine/error_info.h"

#include <nlohmann/json.hpp>

#include "absl/strings/cord.h"
#include "absl/types/optional.h"

namespace ccs {
namespace {

using nlohmann::json;

constexpr char kPayloadUrl[] = "ccs/error-info";

}  // namespace

absl::Status WithErrorInfo(absl::Status status, const ErrorInfo& info) {
  json payload = {{"reason", info.reason},
                  {"expected_step", info.expected_step},
                  {"missing_trainers", info.missing_trainers}};
  if (info.position)
    payload["position"] = {{"lineage", info.position->lineage}, {"step", info.position->step}};
  status.SetPayload(kPayloadUrl, absl::Cord(payload.dump(-1, ' ', false, json::error_handler_t::replace)));
  return status;
}

std::optional<ErrorInfo> GetErrorInfo(const absl::Status& status) {
  const absl::optional<absl::Cord> text = status.GetPayload(kPayloadUrl);
  if (!text) return std::nullopt;
  const json payload = json::parse(std::string(*text));
  ErrorInfo info;
  info.reason = payload.at("reason");
  info.expected_step = payload.at("expected_step");
  info.missing_trainers = payload.at("missing_trainers").get<std::vector<int>>();
  if (const auto position = payload.find("position"); position != payload.end()) {
    info.position = Position{position->at("lineage"), position->at("step")};
  }
  return info;
}

}  // namespace ccs
