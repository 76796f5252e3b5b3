#include "server/cluster/recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/history.h"
#include "server/cluster/messages.h"
#include "server/cluster/window.h"

namespace ccs {
namespace {

class Planner {
 public:
  explicit Planner(const RecoveryInput& input) : input_(input), history_(input.ranks, *input.checkpoints) {}

  absl::StatusOr<Recovery> Plan() {
    if (input_.resume_step) return ToStep(*input_.resume_step);
    if (IsFirstStart()) {
      if (input_.policy.kind == ResumePolicy::Kind::kNone) return Begin({}, 0);
      if (input_.policy.kind == ResumePolicy::Kind::kStep) return ToStep(input_.policy.step);
    }
    if (std::optional<Recovery> recovery = FromMemory()) return *recovery;
    for (const uint64_t lineage : history_.LoggedLineages()) {
      if (input_.known.lineage != 0 && lineage > input_.known.lineage) continue;
      const CommonLog& log = *history_.Find(lineage);
      const bool is_everywhere = history_.IsEverywhere(log);
      if (!is_everywhere && !HasServed(lineage, log)) continue;
      if (input_.known.lineage == 0 && NewestCheckpointed() > lineage) break;
      if (is_everywhere) {
        if (std::optional<Recovery> recovery = GoOn(lineage, log)) return *recovery;
      }
      return WithLoss(lineage);
    }
    return WithLoss(Present());
  }

 private:
  bool IsFirstStart() const {
    return input_.known.lineage == 0 && std::none_of(input_.ranks.begin(), input_.ranks.end(),
                                                     [](const auto* rank) { return rank->has_served(); });
  }

  // The lineage that the cluster is in, or was in last.
  uint64_t Present() const {
    return input_.known.lineage != 0 ? input_.known.lineage : history_.newest_lineage();
  }

  // Later than the log if the cluster ran with another number of shards meanwhile.
  uint64_t NewestCheckpointed() const {
    const std::vector<v1::CheckpointInfo> common = input_.checkpoints->Common();
    return common.empty() ? 0 : common.back().id().lineage();
  }

  // The beginning of a lineage is on every disk before the first trainer is answered in it.
  bool HasServed(uint64_t lineage, const CommonLog& log) const {
    return log.longest > 0 || lineage == input_.known.lineage || !history_.Checkpoints({lineage}).empty() ||
           std::any_of(input_.ranks.begin(), input_.ranks.end(),
                       [lineage](const auto* rank) { return rank->memory().lineage() == lineage; });
  }

  uint64_t NextLineage() const { return 1 + std::max(input_.last_lineage, history_.newest_lineage()); }

  Recovery Begin(Origin origin, int64_t step) const {
    return {.lineage = NextLineage(), .origin = std::move(origin), .step = step, .lost = ""};
  }

  std::optional<Recovery> FromMemory() const {
    const v1::LogPosition& first = input_.ranks[0]->memory();
    const Position position = PositionFromProto(first);
    if (position.lineage == 0) return std::nullopt;
    for (const auto* rank : input_.ranks) {
      if (PositionFromProto(rank->memory()) != position) return std::nullopt;
    }
    Recovery recovery{.lineage = position.lineage,
                      .from_memory = true,
                      .begins_lineage = false,
                      .origin = {},
                      .step = position.step,
                      .lost = ""};
    const CommonLog* log = history_.Find(position.lineage);
    if (log != nullptr && log->last > position.index) {
      if (!history_.CanReplay(position.lineage, position.index, log->last)) return std::nullopt;
      recovery.origin.replays.push_back({position.lineage, log->last});
      recovery.step = log->last_step;
    }
    return recovery;
  }

  // The lineage to the last record that every rank has; absent if more than that was acknowledged, or if
  // there is nothing to begin with.
  std::optional<Recovery> GoOn(uint64_t lineage, const CommonLog& log) const {
    if (log.longest > log.last + 1) return std::nullopt;
    Recovery recovery{
        .lineage = lineage, .begins_lineage = false, .origin = {}, .step = log.last_step, .lost = ""};
    for (const v1::CheckpointInfo& checkpoint : history_.Checkpoints({lineage})) {
      if (checkpoint.index() > log.last) return std::nullopt;  // the log has lost its end
      if (!history_.CanReplay(lineage, checkpoint.index(), log.last)) continue;
      recovery.origin.checkpoint = CheckpointIdFromProto(checkpoint.id());
      if (checkpoint.index() < log.last) recovery.origin.replays.push_back({lineage, log.last});
      return recovery;
    }
    std::optional<Origin> beginning = history_.Beginning(lineage);
    if (!beginning || log.first != 1) return std::nullopt;
    recovery.origin = *std::move(beginning);
    recovery.origin.replays.push_back(
        {lineage, log.last});  // without a record too: it leads into the lineage
    return recovery;
  }

  // As far as one comes in the history of `lineage`; 0: there is none.
  absl::StatusOr<Recovery> WithLoss(uint64_t lineage) const {
    for (const Stretch& stretch : history_.Ancestry(lineage, input_.began_from)) {
      const std::vector<v1::CheckpointInfo> checkpoints = history_.Checkpoints(stretch);
      if (!checkpoints.empty()) return Lost(lineage, Extend(checkpoints.front(), stretch));
      if (std::optional<Recovery> recovery = FromBeginning(stretch))
        return Lost(lineage, *std::move(recovery));
    }
    if (input_.known.lineage == 0) {
      // A log that is in nobody's way says nothing of where old checkpoints come from.
      const std::vector<v1::CheckpointInfo> common = input_.checkpoints->Common();
      if (history_.LoggedLineages().empty() && !common.empty()) {
        return Lost(lineage, Extend(common.back(), {common.back().id().lineage()}));
      }
    }
    if (input_.checkpoints->AnyRankHolds() || AnyRankLogged()) return WhatIsMissing();
    return Lost(lineage, Begin({}, 0));
  }

  // The checkpoint, and the log after it as far as every rank has it.
  Recovery Extend(const v1::CheckpointInfo& checkpoint, const Stretch& stretch) const {
    Recovery recovery = Begin({CheckpointIdFromProto(checkpoint.id()), {}}, checkpoint.id().step());
    const CommonLog* log = history_.Find(stretch.lineage);
    if (log == nullptr) return recovery;
    const Replay replay{stretch.lineage, std::min(log->last, stretch.to), stretch.to_step};
    if (replay.to <= checkpoint.index() ||
        !history_.CanReplay(replay.lineage, checkpoint.index(), replay.to)) {
      return recovery;
    }
    recovery.origin.replays.push_back(replay);
    recovery.step = std::min(log->last_step, replay.to_step);
    return recovery;
  }

  // From where the lineage began, as far as every rank has its log; absent if that cannot be had.
  std::optional<Recovery> FromBeginning(const Stretch& stretch) const {
    std::optional<Origin> beginning = history_.Beginning(stretch.lineage);
    if (!beginning) return std::nullopt;
    const CommonLog& log = *history_.Find(stretch.lineage);
    if (log.first != 1) return std::nullopt;
    Recovery recovery = Begin(*std::move(beginning), log.begin_step);
    const Replay replay{stretch.lineage, std::min(log.last, stretch.to), stretch.to_step};
    if (replay.to > 0) {
      recovery.origin.replays.push_back(replay);
      recovery.step = std::min(log.last_step, replay.to_step);
    }
    return recovery;
  }

  absl::StatusOr<Recovery> Lost(uint64_t lineage, Recovery recovery) const {
    int64_t seen = input_.known.step;
    for (const auto* rank : input_.ranks) seen = std::max<int64_t>(seen, rank->memory().step());
    std::string why;
    if (const CommonLog* log = history_.Find(lineage)) {
      seen = std::max(seen, log->longest_step);
      if (!history_.IsEverywhere(*log)) {
        why = absl::StrCat("; only ranks ", absl::StrJoin(log->ranks, ", "), " have the log of lineage ",
                           lineage);
      } else if (log->longest > log->last + 1) {
        why = absl::StrCat("; the log of rank ", log->shortest_rank, " ends at step ", log->last_step);
      }
    }
    if (seen > recovery.step) {
      recovery.lost = absl::StrCat("steps ", recovery.step + 1, " to ", seen, " are lost", why);
    }
    return recovery;
  }

  bool AnyRankLogged() const {
    return std::any_of(input_.ranks.begin(), input_.ranks.end(), [](const auto* rank) {
      return std::any_of(rank->logs().begin(), rank->logs().end(),
                         [](const auto& log) { return log.last() > 0; });
    });
  }

  absl::Status WhatIsMissing() const {
    std::vector<std::string> logs;
    for (size_t rank = 0; rank < input_.ranks.size(); ++rank) {
      const auto& held = input_.ranks[rank]->logs();
      logs.push_back(held.empty() ? absl::StrCat("rank ", rank, " has no step log")
                                  : absl::StrCat("the log of rank ", rank, " ends at step ",
                                                 held.rbegin()->last_step(), " of lineage ",
                                                 held.rbegin()->lineage()));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "no checkpoint is whole on every shard: ", input_.checkpoints->Describe(), "; ",
        absl::StrJoin(logs, "; "), "; restore the missing files, or begin anew with --resume=none"));
  }

  absl::StatusOr<Recovery> ToStep(int64_t step) const {
    const std::vector<WindowPart> window = FindWindow(history_, Present(), input_.began_from);
    for (const WindowPart& part : window) {
      if (step < part.first_step || step > part.last_step) continue;
      Recovery recovery = Begin(part.origin, step);
      if (part.log) recovery.origin.replays.push_back({part.log->lineage, part.log->to, step});
      return recovery;
    }
    if (window.empty() && input_.checkpoints->AnyRankHolds()) return WhatIsMissing();
    return absl::NotFoundError(absl::StrCat("step ", step,
                                            " cannot be gone back to; the checkpoints and the step log hold ",
                                            Describe(StepsOf(window))));
  }

  const RecoveryInput& input_;
  const History history_;
};

}  // namespace

absl::StatusOr<Recovery> PlanRecovery(const RecoveryInput& input) { return Planner(input).Plan(); }

}  // namespace ccs
