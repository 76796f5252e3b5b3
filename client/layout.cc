#include "client/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ccs::client {

std::vector<Part> SplitRows(int trainer_rank, int num_trainers, int num_shards, int64_t rows) {
  if (num_trainers >= num_shards) return {{trainer_rank % num_shards, 0, rows}};
  std::vector<Part> parts;
  for (int shard = trainer_rank; shard < num_shards; shard += num_trainers) parts.push_back({shard, 0, 0});
  const int64_t count = static_cast<int64_t>(parts.size());
  int64_t first_row = 0;
  for (int64_t i = 0; i < count; ++i) {
    parts[i].first_row = first_row;
    parts[i].rows = rows / count + (i < rows % count ? 1 : 0);
    first_row += parts[i].rows;
  }
  return parts;
}

absl::Status ValidateShards(absl::Span<const Shard> shards, int64_t num_classes) {
  int64_t next = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Shard& shard = shards[i];
    if (shard.rank != static_cast<int>(i) || shard.class_start != next || shard.num_classes < 0) {
      return absl::InternalError(absl::StrCat("the cluster's layout is inconsistent at shard ", i, ": rank ",
                                              shard.rank, ", classes from ", shard.class_start, " where ",
                                              next, " comes next"));
    }
    next += shard.num_classes;
  }
  if (shards.empty() || next != num_classes) {
    return absl::InternalError(absl::StrCat("the cluster's layout is inconsistent: ", shards.size(),
                                            " shards own ", next, " of ", num_classes, " classes"));
  }
  return absl::OkStatus();
}

std::vector<OwnedRows> GroupByOwner(absl::Span<const Shard> shards, absl::Span<const int64_t> class_ids,
                                    int64_t max_rows) {
  std::vector<std::vector<OwnedRows>> pieces(shards.size());
  for (size_t row = 0; row < class_ids.size(); ++row) {
    // The last shard that starts at or before the id: an empty one shares its start with the next.
    const auto after = std::upper_bound(shards.begin(), shards.end(), class_ids[row],
                                        [](int64_t id, const Shard& s) { return id < s.class_start; });
    const int owner = static_cast<int>(after - shards.begin()) - 1;
    std::vector<OwnedRows>& owned = pieces[owner];
    if (owned.empty() || static_cast<int64_t>(owned.back().rows.size()) == max_rows) {
      owned.push_back({owner, {}});
    }
    owned.back().rows.push_back(static_cast<int64_t>(row));
  }
  // One piece of every owner after another, so that all shards are busy.
  std::vector<OwnedRows> result;
  bool more = true;
  for (size_t round = 0; more; ++round) {
    more = false;
    for (std::vector<OwnedRows>& owned : pieces) {
      if (round >= owned.size()) continue;
      result.push_back(std::move(owned[round]));
      more = true;
    }
  }
  return result;
}

}  // namespace ccs::client
