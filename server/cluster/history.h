// The history that a lineage belongs to, and which parts of it every rank has on disk.
#ifndef CCS_SERVER_CLUSTER_HISTORY_H_
#define CCS_SERVER_CLUSTER_HISTORY_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/cluster/checkpoint_catalogue.h"
#include "server/engine/types.h"

namespace ccs {

// What the ranks' logs have of one lineage, together.
struct CommonLog {
  Origin origin;
  int64_t begin_step = 0;
  int64_t first = 1;      // greatest of the ranks'
  int64_t last = 0;       // least
  int64_t last_step = 0;  // the step of that record
  int64_t longest = 0;    // greatest last
  int64_t longest_step = 0;
  std::vector<int> ranks;  // that have it
  int shortest_rank = 0;   // the one that `last` is of
  bool same_origin = true;
};

// A lineage of the history, with the part of it that belongs there.
struct Stretch {
  uint64_t lineage = 0;
  int64_t to = std::numeric_limits<int64_t>::max();
  int64_t to_step = std::numeric_limits<int64_t>::max();
};

// Not thread-safe; the registrations and the catalogue outlive it.
class History {
 public:
  History(const std::vector<const v1::Register*>& ranks, const CheckpointCatalogue& checkpoints);

  // Every lineage that some rank's log has, newest first.
  std::vector<uint64_t> LoggedLineages() const;
  // Null if no rank has it.
  const CommonLog* Find(uint64_t lineage) const;
  // Is the lineage's log, if empty, at least there on every rank?
  bool IsEverywhere(const CommonLog& log) const;
  // The greatest lineage that anything on disk or in memory speaks of.
  uint64_t newest_lineage() const { return newest_lineage_; }

  // The lineage and those it came from, newest first. `began_from` stands in for the origin of a lineage that
  // is in no log.
  std::vector<Stretch> Ancestry(uint64_t lineage, const std::optional<CheckpointId>& began_from) const;
  // Checkpoints whole on every rank that belong to the stretch, newest first.
  std::vector<v1::CheckpointInfo> Checkpoints(const Stretch& stretch) const;

  // Can every rank replay the stretch's log from after `index` on, up to `to`?
  bool CanReplay(uint64_t lineage, int64_t index, int64_t to) const;
  // How the state at the beginning of the lineage is made; absent if a part of that is not everywhere.
  std::optional<Origin> Beginning(uint64_t lineage) const;

 private:
  std::optional<v1::CheckpointInfo> FindCheckpoint(const CheckpointId& id) const;

  const size_t num_ranks_;
  const CheckpointCatalogue& checkpoints_;
  std::map<uint64_t, CommonLog> logs_;
  uint64_t newest_lineage_ = 0;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_HISTORY_H_
