// The parts that the engine's records on disk have in common.
#ifndef CCS_SERVER_ENGINE_RECORD_H_
#define CCS_SERVER_ENGINE_RECORD_H_

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/engine/types.h"

namespace ccs {

using Json = nlohmann::json;

// Numbers as they lie in memory; the servers are little-endian.
template <typename T>
Json Bytes(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return Json::binary(std::move(bytes));
}

// Throws Json::exception, like all that follow.
template <typename T>
std::vector<T> Values(const Json& bytes) {
  const Json::binary_t& binary = bytes.get_binary();
  std::vector<T> values(binary.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), binary.data(), values.size() * sizeof(T));
  return values;
}

inline std::string ToCbor(const Json& json) {
  std::string text;
  Json::to_cbor(json, text);
  return text;
}

// Runs `parse` on the record; DATA_LOSS, naming `what`, if it is not such a record.
template <typename Parse>
auto FromCbor(const std::string& record, const char* what, Parse parse)
    -> absl::StatusOr<decltype(parse(Json()))> {
  try {
    return parse(Json::from_cbor(record));
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat(what, " cannot be read: ", error.what()));
  }
}

inline Json RunToJson(const RunState& run) {
  return {{"run_id", Bytes(std::vector<char>(run.run_id.begin(), run.run_id.end()))},
          {"incarnations", run.incarnations}};
}
inline RunState RunFromJson(const Json& json) {
  const std::vector<char> id = Values<char>(json.at("run_id"));
  return {{id.begin(), id.end()}, json.at("incarnations").get<std::vector<uint64_t>>()};
}

inline Json WriteToJson(const CommittedWrite& write) {
  return {{"write_id", Bytes(std::vector<char>(write.write_id.begin(), write.write_id.end()))},
          {"rows", write.rows}};
}
inline CommittedWrite WriteFromJson(const Json& json) {
  const std::vector<char> id = Values<char>(json.at("write_id"));
  return {{id.begin(), id.end()}, json.at("rows").get<int64_t>()};
}

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_RECORD_H_
