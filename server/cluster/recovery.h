// What state a group of shards begins with: decided from what they hold in memory and on disk.
#ifndef CCS_SERVER_CLUSTER_RECOVERY_H_
#define CCS_SERVER_CLUSTER_RECOVERY_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cluster/checkpoint_catalogue.h"
#include "server/cluster/coordinator.h"
#include "server/engine/types.h"

namespace ccs {

struct RecoveryInput {
  ResumePolicy policy;                 // of a cluster that starts for the first time
  std::optional<int64_t> resume_step;  // go to this step, asked for by a trainer
  Position known;                      // where the coordinator saw the cluster serve last; lineage 0: nowhere
  uint64_t last_lineage = 0;           // the greatest that the coordinator has given out
  std::optional<CheckpointId> began_from;  // the checkpoint that the known lineage began from
  std::vector<const v1::Register*> ranks;
  const CheckpointCatalogue* checkpoints = nullptr;
};

struct Recovery {
  uint64_t lineage = 0;
  bool from_memory = false;
  bool begins_lineage = true;
  Origin origin;
  int64_t step = 0;  // that it leads to; of a step asked for, that one
  std::string lost;  // what cannot be had again, for people; empty if nothing

  // For people: "memory", "initial weights", "checkpoint ...".
  std::string Source() const { return from_memory ? "memory" : origin.ToString(); }
};

// In this order:
//   1. a step that was asked for, by a trainer or when a cluster starts: from the newest checkpoint of the
//      present history at or before it, and the log up to it. A new lineage.
//   2. memory, if all ranks stand at the same position. The lineage goes on.
//   3. the newest checkpoint of the newest lineage that is whole on every rank, and the log up to the last
//   record
//      that all have; without a checkpoint, from where the lineage began. It goes on.
//   4. if records are missing that others have, so that acknowledged steps may be lost: as far as checkpoints
//   and
//      logs of this history reach. A new lineage, and `lost` says what is missing.
// An abandoned history is never mixed in: only the newest lineage and what it came from count.
// Records: no rank is ever more than one ahead of another, because each change waits for all ranks' logs; one
// record more is of a change that nobody was told of.
// NOT_FOUND, with the steps that there are, for a step out of reach; FAILED_PRECONDITION, naming the ranks,
// if a rank lacks what the others have and there is nothing to fall back to.
absl::StatusOr<Recovery> PlanRecovery(const RecoveryInput& input);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_RECOVERY_H_
