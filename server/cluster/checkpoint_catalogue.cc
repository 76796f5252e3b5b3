#include "server/cluster/checkpoint_catalogue.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/messages.h"

namespace ccs {

CheckpointCatalogue::CheckpointCatalogue(int num_shards, int keep)
    : keep_(static_cast<size_t>(std::max(keep, 1))), ranks_(num_shards) {}

void CheckpointCatalogue::SetRank(int rank,
                                  const google::protobuf::RepeatedPtrField<v1::CheckpointInfo>& checkpoints) {
  ranks_[rank].clear();
  for (const v1::CheckpointInfo& checkpoint : checkpoints) Written(rank, checkpoint);
}

void CheckpointCatalogue::Written(int rank, const v1::CheckpointInfo& checkpoint) {
  ranks_[rank][CheckpointIdFromProto(checkpoint.id())] = checkpoint;
  max_lineage_ = std::max<uint64_t>(max_lineage_, checkpoint.id().lineage());
}

void CheckpointCatalogue::Committed(const CheckpointId& id) {
  log_cut_ = {};
  for (auto& held : ranks_) {
    size_t newer = 0;
    const v1::CheckpointInfo* oldest = nullptr;  // of those that stay, in this lineage
    for (auto next = held.upper_bound(id); next != held.begin();) {
      const auto it = std::prev(next);
      if (newer++ < keep_) {
        if (it->first.lineage == id.lineage) oldest = &it->second;
        next = it;
      } else {
        next = it->second.kept() ? it : held.erase(it);
      }
    }
    // A rank that holds one more cuts less; what the ranks have together begins after the last cut.
    if (oldest != nullptr && oldest->index() >= log_cut_.index) {
      log_cut_ = {id.lineage, oldest->id().step(), oldest->index()};
    }
  }
}

void CheckpointCatalogue::Released(const CheckpointId& id) {
  for (auto& held : ranks_) {
    if (const auto found = held.find(id); found != held.end()) found->second.set_kept(false);
  }
}

std::optional<v1::CheckpointInfo> CheckpointCatalogue::FindCommon(const CheckpointId& id) const {
  v1::CheckpointInfo common;
  *common.mutable_id() = CheckpointIdToProto(id);
  for (const auto& held : ranks_) {
    const auto found = held.find(id);
    if (found == held.end()) return std::nullopt;
    common.set_created_unix_s(std::max(common.created_unix_s(), found->second.created_unix_s()));
    common.set_bytes(common.bytes() + found->second.bytes());
    common.set_index(found->second.index());
    common.set_kept(common.kept() || found->second.kept());
  }
  return common;
}

std::vector<v1::CheckpointInfo> CheckpointCatalogue::Common() const {
  std::vector<v1::CheckpointInfo> common;
  for (const auto& [id, unused] : ranks_[0]) {
    if (const auto found = FindCommon(id)) common.push_back(*found);
  }
  return common;
}

bool CheckpointCatalogue::AnyRankHolds() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& held) { return !held.empty(); });
}

std::string CheckpointCatalogue::Describe() const {
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& held = ranks_[rank];
    ranks.push_back(absl::StrCat("rank ", rank, " has ",
                                 held.empty() ? "none" : held.rbegin()->first.ToString(),
                                 held.size() > 1 ? absl::StrCat(" and ", held.size() - 1, " older") : ""));
  }
  return absl::StrJoin(ranks, "; ");
}

}  // namespace ccs
