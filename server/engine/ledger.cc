#include "server/engine/ledger.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/record.h"

namespace ccs {
namespace {

constexpr size_t kWritesKept = 256;
constexpr int kVersion = 2;

Json ToJson(const AnsweredSlice& answer) {
  const SliceReply& reply = *answer.reply;
  const StepStatistics& statistics = reply.statistics;
  return {
      {"run_id", Bytes(std::vector<char>(answer.run_id.begin(), answer.run_id.end()))},
      {"trainer", answer.trainer_rank},
      {"digest", answer.digest},
      {"step", reply.step},
      {"loss", std::bit_cast<uint64_t>(reply.loss)},
      {"statistics",
       {statistics.batch_rows, statistics.labelled_rows, statistics.sampled_classes, statistics.positives}},
      {"feature_grad", Bytes(reply.feature_grad)}};
}

AnsweredSlice AnswerFromJson(const Json& json) {
  const std::vector<char> id = Values<char>(json.at("run_id"));
  const Json& statistics = json.at("statistics");
  SliceReply reply;
  reply.step = json.at("step").get<int64_t>();
  reply.loss = std::bit_cast<double>(json.at("loss").get<uint64_t>());
  reply.statistics = {statistics.at(0).get<int64_t>(), statistics.at(1).get<int64_t>(),
                      statistics.at(2).get<int64_t>(), statistics.at(3).get<int64_t>()};
  reply.feature_grad = Values<float>(json.at("feature_grad"));
  return {{id.begin(), id.end()},
          json.at("trainer").get<int>(),
          json.at("digest").get<uint64_t>(),
          std::make_shared<const SliceReply>(std::move(reply))};
}

}  // namespace

void Ledger::AddWrite(CommittedWrite write) {
  if (writes.size() == kWritesKept) writes.erase(writes.begin());
  writes.push_back(std::move(write));
}

bool Ledger::Contains(const std::string& write_id) const {
  return std::any_of(writes.begin(), writes.end(),
                     [&](const CommittedWrite& write) { return write.write_id == write_id; });
}

std::string Ledger::ToRecord() const {
  Json json = {{"version", kVersion},
               {"index", index},
               {"run", RunToJson(run)},
               {"writes", Json::array()},
               {"answers", Json::array()}};
  for (const CommittedWrite& write : writes) json["writes"].push_back(WriteToJson(write));
  for (const AnsweredSlice& answer : answers) json["answers"].push_back(ToJson(answer));
  return ToCbor(json);
}

absl::StatusOr<Ledger> Ledger::FromRecord(const std::string& record) {
  absl::StatusOr<std::pair<int, Ledger>> read = FromCbor(record, "the ledger", [](const Json& json) {
    std::pair<int, Ledger> result{json.at("version").get<int>(), {}};
    if (result.first != kVersion) return result;
    Ledger& ledger = result.second;
    ledger.index = json.at("index").get<int64_t>();
    ledger.run = RunFromJson(json.at("run"));
    for (const Json& write : json.at("writes")) ledger.AddWrite(WriteFromJson(write));
    for (const Json& answer : json.at("answers")) ledger.answers.push_back(AnswerFromJson(answer));
    return result;
  });
  if (!read.ok()) return read.status();
  if (read->first != kVersion) {
    return absl::DataLossError(
        absl::StrCat("the ledger has version ", read->first, ", this build reads ", kVersion));
  }
  return std::move(read->second);
}

}  // namespace ccs
