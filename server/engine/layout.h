// Which shard owns which classes, and which is home to which trainer.
#ifndef CCS_SERVER_ENGINE_LAYOUT_H_
#define CCS_SERVER_ENGINE_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ccs {

struct ClassRange {
  int64_t start = 0;
  int64_t count = 0;
  bool contains(int64_t class_id) const { return class_id >= start && class_id - start < count; }
};

// Contiguous ranges in rank order; the first num_classes mod num_shards are one class longer.
inline ClassRange ClassRangeOf(int64_t num_classes, int num_shards, int rank) {
  const int64_t share = num_classes / num_shards;
  const int64_t longer = num_classes % num_shards;
  return {share * rank + std::min<int64_t>(rank, longer), share + (rank < longer ? 1 : 0)};
}

// With M trainers and N shards, trainer i is at home on shard i mod N when M >= N, and on the shards k with
// k mod M = i when M < N.
inline bool IsHome(int rank, int num_shards, int trainer_rank, int num_trainers) {
  return num_trainers >= num_shards ? trainer_rank % num_shards == rank : rank % num_trainers == trainer_rank;
}

// Trainers at home on a shard, ascending; the order of its rows in the global batch.
inline std::vector<int> TrainersAtHome(int rank, int num_shards, int num_trainers) {
  std::vector<int> trainers;
  for (int i = 0; i < num_trainers; ++i) {
    if (IsHome(rank, num_shards, i, num_trainers)) trainers.push_back(i);
  }
  return trainers;
}

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_LAYOUT_H_
