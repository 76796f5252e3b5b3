#include "server/engine/change.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/record.h"

namespace ccs {
namespace {

static_assert(std::endian::native == std::endian::little, "records hold numbers as they lie in memory");

// Bits, because CBOR writers may shorten a float.
uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
float FromBits(const Json& bits) { return std::bit_cast<float>(bits.get<uint32_t>()); }

Json ToJson(const StepParams& params) {
  Json json = {{"learning_rate", Bits(params.learning_rate)}, {"checkpoint", params.checkpoint}};
  if (params.scale) json["scale"] = Bits(*params.scale);
  if (params.margin)
    json["margin"] = {Bits(params.margin->m1), Bits(params.margin->m2), Bits(params.margin->m3)};
  return json;
}

StepParams ParamsFromJson(const Json& json) {
  StepParams params;
  params.learning_rate = FromBits(json.at("learning_rate"));
  params.checkpoint = json.at("checkpoint").get<bool>();
  if (json.contains("scale")) params.scale = FromBits(json.at("scale"));
  if (json.contains("margin")) {
    const Json& margin = json.at("margin");
    params.margin = kernels::Margin{FromBits(margin.at(0)), FromBits(margin.at(1)), FromBits(margin.at(2))};
  }
  return params;
}

Json ToJson(const StepChange& change) {
  Json slices = Json::array();
  for (const auto& slice : change.slices) {
    slices.push_back({{"trainer", slice->trainer_rank},
                      {"gradient_scale", Bits(slice->gradient_scale)},
                      {"digest", slice->digest},
                      {"labels", Bytes(slice->labels)},
                      {"features", Bytes(slice->features)}});
  }
  return {{"kind", "step"},
          {"step", change.operation.step},
          {"params", ToJson(change.operation.params)},
          {"rows_per_rank", change.operation.rows_per_rank},
          {"slices", std::move(slices)}};
}

StepChange StepFromJson(const Json& json) {
  StepChange change;
  change.operation.step = json.at("step").get<int64_t>();
  change.operation.params = ParamsFromJson(json.at("params"));
  change.operation.rows_per_rank = json.at("rows_per_rank").get<std::vector<int>>();
  for (const Json& item : json.at("slices")) {
    Slice slice;
    slice.trainer_rank = item.at("trainer").get<int>();
    slice.step = change.operation.step;
    slice.params = change.operation.params;
    slice.gradient_scale = FromBits(item.at("gradient_scale"));
    slice.digest = item.at("digest").get<uint64_t>();
    slice.labels = Values<int64_t>(item.at("labels"));
    slice.features = Values<float>(item.at("features"));
    change.slices.push_back(std::make_shared<const Slice>(std::move(slice)));
  }
  return change;
}

Json ToJson(const WriteChange& change) {
  Json json = {{"kind", "write"}, {"write", WriteToJson(change.write)}};
  std::vector<int64_t> class_ids;
  std::vector<float> centres;
  for (const auto& [id, centre] : change.rows) {
    class_ids.push_back(id);
    centres.insert(centres.end(), centre.begin(), centre.end());
  }
  json["class_ids"] = Bytes(class_ids);
  json["centres"] = Bytes(centres);
  return json;
}

WriteChange WriteFromJsonRecord(const Json& json) {
  WriteChange change;
  change.write = WriteFromJson(json.at("write"));
  const std::vector<int64_t> class_ids = Values<int64_t>(json.at("class_ids"));
  const std::vector<float> centres = Values<float>(json.at("centres"));
  const size_t dim = class_ids.empty() ? 0 : centres.size() / class_ids.size();
  for (size_t i = 0; i < class_ids.size(); ++i) {
    const auto row = centres.begin() + static_cast<std::ptrdiff_t>(i * dim);
    change.rows[class_ids[i]].assign(row, row + static_cast<std::ptrdiff_t>(dim));
  }
  return change;
}

Json ToJson(const RunChange& change) { return {{"kind", "run"}, {"run", RunToJson(change.run)}}; }

}  // namespace

std::string EncodeChange(const Change& change) {
  return ToCbor(std::visit([](const auto& kind) { return ToJson(kind); }, change));
}

absl::StatusOr<Change> DecodeChange(const std::string& record) {
  return FromCbor(record, "a record of the step log", [](const Json& json) -> Change {
    const std::string kind = json.at("kind").get<std::string>();
    if (kind == "step") return StepFromJson(json);
    if (kind == "write") return WriteFromJsonRecord(json);
    return RunChange{RunFromJson(json.at("run"))};
  });
}

std::string EncodeOrigin(const Origin& origin) {
  Json json = {{"replays", Json::array()}};
  if (origin.checkpoint) {
    json["checkpoint"] = {origin.checkpoint->lineage, origin.checkpoint->step, origin.checkpoint->nonce};
  }
  for (const Replay& replay : origin.replays) {
    json["replays"].push_back({replay.lineage, replay.to, replay.to_step});
  }
  return ToCbor(json);
}

absl::StatusOr<Origin> DecodeOrigin(const std::string& record) {
  return FromCbor(record, "where a lineage began", [](const Json& json) {
    Origin origin;
    if (json.contains("checkpoint")) {
      const Json& id = json.at("checkpoint");
      origin.checkpoint =
          CheckpointId{id.at(0).get<uint64_t>(), id.at(1).get<int64_t>(), id.at(2).get<uint64_t>()};
    }
    for (const Json& replay : json.at("replays")) {
      origin.replays.push_back(
          {replay.at(0).get<uint64_t>(), replay.at(1).get<int64_t>(), replay.at(2).get<int64_t>()});
    }
    return origin;
  });
}

std::string Origin::ToString() const {
  std::string text = checkpoint ? "checkpoint " + checkpoint->ToString() : "initial weights";
  for (const Replay& replay : replays) {
    absl::StrAppend(&text, " and the log of lineage ", replay.lineage, " up to record ", replay.to);
    if (replay.to_step != std::numeric_limits<int64_t>::max())
      absl::StrAppend(&text, ", step ", replay.to_step);
  }
  return text;
}

}  // namespace ccs
