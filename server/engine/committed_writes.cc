#include "server/engine/committed_writes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ccs {
namespace {

using nlohmann::json;

constexpr size_t kWritesKept = 256;
constexpr int kVersion = 1;

}  // namespace

void CommittedWrites::Add(CommittedWrite write) {
  if (writes_.size() == kWritesKept) writes_.erase(writes_.begin());
  writes_.push_back(std::move(write));
}

bool CommittedWrites::Contains(const std::string& write_id) const {
  return std::any_of(writes_.begin(), writes_.end(),
                     [&](const CommittedWrite& write) { return write.write_id == write_id; });
}

std::string CommittedWrites::ToRecord() const {
  json writes = json::array();
  for (const CommittedWrite& write : writes_) {
    writes.push_back({{"write_id", write.write_id}, {"rows", write.rows}});
  }
  const json record = {{"version", kVersion}, {"committed_writes", std::move(writes)}};
  return record.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<CommittedWrites> CommittedWrites::FromRecord(const std::string& record) {
  try {
    const json parsed = json::parse(record);
    if (const int version = parsed.at("version"); version != kVersion) {
      return absl::DataLossError(
          absl::StrCat("the ledger has version ", version, ", this build reads ", kVersion));
    }
    CommittedWrites ledger;
    for (const json& write : parsed.at("committed_writes")) {
      ledger.Add({write.at("write_id").get<std::string>(), write.at("rows").get<int64_t>()});
    }
    return ledger;
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat("the ledger does not parse: ", error.what()));
  }
}

}  // namespace ccs
