#include "server/cluster/pending_operations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ccs {

absl::Status OperationOutcome::status() const {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const absl::Status& status = ranks[rank].status;
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
  }
  return absl::OkStatus();
}

bool OperationOutcome::failed_everywhere() const {
  return std::none_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.status.ok(); });
}

void PendingOperations::Await(uint64_t sequence, Finished finished) {
  pending_[sequence] = {std::vector<std::optional<OperationOutcome::Rank>>(num_shards_), num_shards_,
                        std::move(finished)};
}

void PendingOperations::Done(int rank, uint64_t sequence, const absl::Status& status, int64_t bytes) {
  const auto found = pending_.find(sequence);
  if (found == pending_.end() || found->second.ranks[rank]) return;
  found->second.ranks[rank] = OperationOutcome::Rank{status, bytes};
  if (--found->second.missing > 0) return;
  const Pending pending = std::move(found->second);
  pending_.erase(found);  // before the callback, which may await another
  OperationOutcome outcome;
  for (const auto& said : pending.ranks) outcome.ranks.push_back(*said);
  pending.finished(outcome);
}

}  // namespace ccs
