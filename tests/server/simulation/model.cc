#include "tests/server/simulation/model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/layout.h"

namespace ccs::simulation {

void Model::Arrived(const Position& position, const Rows& rows) {
  const auto [item, is_new] = arrivals_.try_emplace({position.lineage, position.index}, position.step, rows);
  if (!is_new && (item->second.first != position.step || item->second.second != rows)) {
    Violated(absl::StrCat("lineage ", position.lineage, " has two states after change ", position.index));
  }
  const auto [step, is_first] = steps_.try_emplace({position.lineage, position.step}, rows.steps);
  if (!is_first && step->second != rows.steps) {
    Violated(absl::StrCat("step ", position.step, " of lineage ", position.lineage, " has two outcomes"));
  }
  for (const auto& [write_id, times] : rows.writes) {
    if (times != 1) Violated(absl::StrCat("write ", write_id, " was applied ", times, " times"));
  }
}

void Model::StepTaken(const RunState& run, int num_shards, const std::vector<Part>& parts, bool is_replay) {
  std::map<int, std::set<int>> homes;
  std::map<int, std::set<int64_t>> payloads;
  for (const Part& part : parts) {
    if (!homes[part.trainer].insert(part.rank).second) Violated("a trainer takes part twice on one shard");
    payloads[part.trainer].insert(part.payload);
    if (is_replay || part.trainer >= run.num_trainers()) continue;
    if (part.incarnation != run.incarnations[part.trainer]) Violated("a former incarnation takes part");
  }
  for (int trainer = 0; trainer < run.num_trainers(); ++trainer) {
    for (int rank = 0; rank < num_shards; ++rank) {
      if (IsHome(rank, num_shards, trainer, run.num_trainers()) != homes[trainer].contains(rank)) {
        Violated(absl::StrCat("trainer ", trainer, "'s part on shard ", rank, " is missing or too many"));
      }
    }
    if (payloads[trainer].size() > 1) Violated("a step mixes the parts of two payloads");
  }
}

void Model::Acknowledged(uint64_t lineage, int64_t step) {
  acknowledged_[lineage] = std::max(acknowledged_[lineage], step);
  ++steps_acknowledged_;
}

void Model::Replied(uint64_t lineage, int64_t step, uint64_t digest, double loss) {
  const auto known = steps_.find({lineage, step});
  if (known == steps_.end())
    return Violated(absl::StrCat("a reply for step ", step, ", which was not taken"));
  if (Rows{known->second, {}}.LossOf(digest) != loss) {
    Violated(absl::StrCat("a reply for step ", step, " of lineage ", lineage, " is not what the step gave"));
  }
}

void Model::Ends(const Rows& rows) {
  for (const std::string& write_id : written_) {
    if (!rows.writes.contains(write_id) && !anything_lost_) {
      Violated(absl::StrCat("write ", write_id, " was acknowledged and is gone"));
    }
  }
}

void Model::Serves(const Position& position) {
  if (position.lineage != lineage_ && new_lineages_allowed_-- == 0) {
    Violated(absl::StrCat("lineage ", lineage_, " was abandoned for ", position.lineage, " without a loss"));
  }
  if (const auto known = acknowledged_.find(position.lineage);
      known != acknowledged_.end() && known->second > position.step) {
    Violated(absl::StrCat("step ", known->second, " of lineage ", position.lineage,
                          " was acknowledged, the cluster serves from step ", position.step));
  }
  lineage_ = position.lineage;
}

}  // namespace ccs::simulation
