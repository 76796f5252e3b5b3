#include "server/cluster/history.h"

#include <algorithm>

#include "server/cluster/messages.h"

namespace ccs {

History::History(const std::vector<const v1::Register*>& ranks, const CheckpointCatalogue& checkpoints)
    : num_ranks_(ranks.size()), checkpoints_(checkpoints), newest_lineage_(checkpoints.max_lineage()) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    newest_lineage_ = std::max<uint64_t>(newest_lineage_, ranks[rank]->memory().lineage());
    for (const v1::LoggedLineage& held : ranks[rank]->logs()) {
      newest_lineage_ = std::max<uint64_t>(newest_lineage_, held.lineage());
      const Origin origin = OriginFromProto(held.origin());
      const auto [item, is_new] = logs_.try_emplace(held.lineage(), CommonLog{origin,
                                                                              held.begin_step(),
                                                                              held.first(),
                                                                              held.last(),
                                                                              held.last_step(),
                                                                              held.last(),
                                                                              held.last_step(),
                                                                              {},
                                                                              static_cast<int>(rank)});
      CommonLog& log = item->second;
      log.ranks.push_back(static_cast<int>(rank));
      log.same_origin = log.same_origin && log.origin == origin;
      log.first = std::max<int64_t>(log.first, held.first());
      if (held.last() < log.last) {
        log.last = held.last();
        log.last_step = held.last_step();
        log.shortest_rank = static_cast<int>(rank);
      }
      if (held.last() > log.longest) {
        log.longest = held.last();
        log.longest_step = held.last_step();
      }
    }
  }
}

std::vector<uint64_t> History::LoggedLineages() const {
  std::vector<uint64_t> lineages;
  for (auto it = logs_.rbegin(); it != logs_.rend(); ++it) lineages.push_back(it->first);
  return lineages;
}

const CommonLog* History::Find(uint64_t lineage) const {
  const auto found = logs_.find(lineage);
  return found == logs_.end() ? nullptr : &found->second;
}

bool History::IsEverywhere(const CommonLog& log) const {
  return log.ranks.size() == num_ranks_ && log.same_origin;
}

std::optional<v1::CheckpointInfo> History::FindCheckpoint(const CheckpointId& id) const {
  return checkpoints_.FindCommon(id);
}

std::vector<Stretch> History::Ancestry(uint64_t lineage,
                                       const std::optional<CheckpointId>& began_from) const {
  std::vector<Stretch> stretches = {{lineage}};
  // Lineages only come from earlier ones.
  for (uint64_t at = lineage; at != 0;) {
    const CommonLog* log = Find(at);
    Origin origin;
    if (log != nullptr) {
      origin = log->origin;
    } else if (at == lineage) {
      origin.checkpoint = began_from;
    }
    for (auto replay = origin.replays.rbegin(); replay != origin.replays.rend(); ++replay) {
      stretches.push_back({replay->lineage, replay->to, replay->to_step});
    }
    if (!origin.checkpoint) break;
    const uint64_t parent = origin.checkpoint->lineage;
    if (stretches.back().lineage != parent) {
      Stretch stretch{parent, std::numeric_limits<int64_t>::max(), origin.checkpoint->step};
      if (const auto found = FindCheckpoint(*origin.checkpoint)) stretch.to = found->index();
      stretches.push_back(stretch);
    }
    at = parent < at ? parent : 0;
  }
  return stretches;
}

std::vector<v1::CheckpointInfo> History::Checkpoints(const Stretch& stretch) const {
  std::vector<v1::CheckpointInfo> belonging = checkpoints_.Common();
  std::reverse(belonging.begin(), belonging.end());
  std::erase_if(belonging, [&stretch](const v1::CheckpointInfo& checkpoint) {
    return checkpoint.id().lineage() != stretch.lineage || checkpoint.index() > stretch.to ||
           checkpoint.id().step() > stretch.to_step;
  });
  std::stable_sort(belonging.begin(), belonging.end(),
                   [](const auto& a, const auto& b) { return a.index() > b.index(); });
  return belonging;
}

bool History::CanReplay(uint64_t lineage, int64_t index, int64_t to) const {
  if (index >= to) return true;
  const CommonLog* log = Find(lineage);
  return log != nullptr && IsEverywhere(*log) && log->first <= index + 1 && log->last >= to;
}

std::optional<Origin> History::Beginning(uint64_t lineage) const {
  const CommonLog* log = Find(lineage);
  if (log == nullptr || !IsEverywhere(*log)) return std::nullopt;
  Position at;
  if (log->origin.checkpoint) {
    const auto found = FindCheckpoint(*log->origin.checkpoint);
    if (!found) return std::nullopt;
    at = {found->id().lineage(), found->id().step(), found->index()};
  }
  for (const Replay& replay : log->origin.replays) {
    if (replay.lineage != at.lineage) at = {replay.lineage, at.step, 0};
    if (!CanReplay(replay.lineage, at.index, replay.to)) return std::nullopt;
    at.index = replay.to;
  }
  return log->origin;
}

}  // namespace ccs
