// Who may join a group, and what state the group starts from.
#ifndef CCS_SERVER_CLUSTER_FORMATION_H_
#define CCS_SERVER_CLUSTER_FORMATION_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cluster/checkpoint_catalogue.h"
#include "server/cluster/coordinator.h"

namespace ccs {

// INVALID_ARGUMENT for a rank out of range, FAILED_PRECONDITION for a differing number of shards, spec or
// version, both values named.
absl::Status CheckRegistration(const CoordinatorOptions& options, const v1::Register& registration);

// Where a freshly started cluster begins; absent: initial weights. FAILED_PRECONDITION if there are
// checkpoints but none is whole on every rank, NOT_FOUND if the policy's step is not there.
absl::StatusOr<std::optional<CheckpointId>> ChooseFirst(const ResumePolicy& policy,
                                                        const CheckpointCatalogue& catalogue);

// Where a cluster that broke apart goes on: the newest common checkpoint of the lineage that it was in, else
// the one that lineage began from, else initial weights.
std::optional<CheckpointId> ChooseAgain(uint64_t lineage, const std::optional<CheckpointId>& began_from,
                                        const CheckpointCatalogue& catalogue);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_FORMATION_H_
