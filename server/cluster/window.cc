#include "server/cluster/window.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/messages.h"

namespace ccs {
namespace {

// The checkpoints of one lineage of the history, and its beginning, each with the log behind it.
void AddPartsOf(const History& history, const Stretch& stretch, std::vector<WindowPart>* window) {
  const CommonLog* log = history.Find(stretch.lineage);
  const Replay replay{stretch.lineage, log == nullptr ? 0 : std::min(log->last, stretch.to), stretch.to_step};
  const int64_t last_step = log == nullptr ? 0 : std::min(log->last_step, stretch.to_step);
  for (const v1::CheckpointInfo& checkpoint : history.Checkpoints(stretch)) {
    const int64_t step = checkpoint.id().step();
    WindowPart part{{CheckpointIdFromProto(checkpoint.id()), {}}, step, step, std::nullopt};
    if (checkpoint.index() < replay.to && history.CanReplay(stretch.lineage, checkpoint.index(), replay.to)) {
      part.log = replay;
      part.last_step = last_step;
    }
    window->push_back(std::move(part));
  }
  std::optional<Origin> beginning = history.Beginning(stretch.lineage);
  if (!beginning || log->first != 1) return;
  WindowPart part{*std::move(beginning), log->begin_step, std::max(log->begin_step, last_step), std::nullopt};
  if (replay.to > 0) part.log = replay;
  window->push_back(std::move(part));
}

v1::LoggedLineage* FindOrAdd(uint64_t lineage, const ServedLineage& served, v1::Register* rank) {
  for (v1::LoggedLineage& log : *rank->mutable_logs()) {
    if (log.lineage() == lineage) return &log;
  }
  v1::LoggedLineage* log = rank->add_logs();
  log->set_lineage(lineage);
  *log->mutable_origin() = OriginToProto(served.origin);
  log->set_begin_step(served.begin_step);
  log->set_first(1);
  return log;
}

}  // namespace

std::vector<WindowPart> FindWindow(const History& history, uint64_t lineage,
                                   const std::optional<CheckpointId>& began_from) {
  std::vector<WindowPart> window;
  for (const Stretch& stretch : history.Ancestry(lineage, began_from)) AddPartsOf(history, stretch, &window);
  return window;
}

std::vector<StepRange> StepsOf(const std::vector<WindowPart>& window) {
  std::vector<StepRange> ranges;
  ranges.reserve(window.size());
  for (const WindowPart& part : window) ranges.push_back({part.first_step, part.last_step});
  std::sort(ranges.begin(), ranges.end(),
            [](const StepRange& a, const StepRange& b) { return a.first < b.first; });
  std::vector<StepRange> merged;
  for (const StepRange& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

std::string Describe(const std::vector<StepRange>& steps) {
  if (steps.empty()) return "nothing";
  const auto format = [](std::string* text, const StepRange& range) {
    absl::StrAppend(text, range.first);
    if (range.last > range.first) absl::StrAppend(text, " to ", range.last);
  };
  return absl::StrCat("steps ", absl::StrJoin(steps, ", ", format));
}

std::vector<v1::Register> WithLogsOfNow(const std::vector<const v1::Register*>& ranks,
                                        const ServedLineage& served) {
  std::vector<v1::Register> now;
  for (const v1::Register* registered : ranks) {
    v1::Register& rank = now.emplace_back(*registered);
    if (!rank.step_log()) continue;
    v1::LoggedLineage* log = FindOrAdd(served.position.lineage, served, &rank);
    log->set_last(served.position.index);
    log->set_last_step(served.position.step);
    auto& logs = *rank.mutable_logs();
    logs.erase(std::remove_if(logs.begin(), logs.end(),
                              [&](const auto& other) { return other.lineage() < served.cut.lineage; }),
               logs.end());
    for (v1::LoggedLineage& other : logs) {
      if (other.lineage() != served.cut.lineage) continue;
      other.set_first(std::max(other.first(), served.cut.index + 1));
    }
  }
  return now;
}

}  // namespace ccs
