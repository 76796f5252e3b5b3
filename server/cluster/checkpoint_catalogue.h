// Which checkpoints each rank holds.
#ifndef CCS_SERVER_CLUSTER_CHECKPOINT_CATALOGUE_H_
#define CCS_SERVER_CLUSTER_CHECKPOINT_CATALOGUE_H_

#include <ccs/v1/admin.pb.h>
#include <google/protobuf/repeated_ptr_field.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/engine/types.h"
#include "server/storage/checkpoint_store.h"

namespace ccs {

// What the ranks said when they registered, and what has been written and pruned since. Not thread-safe.
class CheckpointCatalogue {
 public:
  // `keep`: how many each rank keeps of those at or below a committed one, besides those to be released.
  CheckpointCatalogue(int num_shards, int keep);

  // All that `rank` holds.
  void SetRank(int rank, const google::protobuf::RepeatedPtrField<v1::CheckpointInfo>& checkpoints);
  // `rank` has written one.
  void Written(int rank, const v1::CheckpointInfo& checkpoint);
  // It is whole everywhere: every rank removes older ones beyond the number kept, and cuts its log.
  void Committed(const CheckpointId& id);
  // It is no longer kept for its own sake.
  void Released(const CheckpointId& id);

  // Whole on every rank, oldest first; bytes are of all shards together.
  std::vector<v1::CheckpointInfo> Common() const;
  std::optional<v1::CheckpointInfo> FindCommon(const CheckpointId& id) const;
  // Does any rank hold one?
  bool AnyRankHolds() const;
  // "rank 0 has 1-20-...; rank 1 has none", the newest of each rank.
  std::string Describe() const;
  // Where the ranks have cut their logs last; lineage 0: nowhere.
  const Position& log_cut() const { return log_cut_; }
  // The greatest lineage ever seen here.
  uint64_t max_lineage() const { return max_lineage_; }

 private:
  const size_t keep_;
  uint64_t max_lineage_ = 0;
  Position log_cut_;
  std::vector<std::map<CheckpointId, v1::CheckpointInfo>> ranks_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_CHECKPOINT_CATALOGUE_H_
