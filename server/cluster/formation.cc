#include "server/cluster/formation.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/messages.h"
#include "server/model_spec_proto.h"

namespace ccs {

absl::Status CheckRegistration(const CoordinatorOptions& options, const v1::Register& registration) {
  if (registration.num_shards() != options.num_shards) {
    return absl::FailedPreconditionError(absl::StrCat("number of shards differs: the coordinator has ",
                                                      options.num_shards, ", rank ", registration.rank(),
                                                      " has ", registration.num_shards()));
  }
  if (registration.rank() < 0 || registration.rank() >= options.num_shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", registration.rank(), " is not in 0..", options.num_shards - 1));
  }
  if (registration.version() != options.version) {
    return absl::FailedPreconditionError(absl::StrCat("version differs: the coordinator is ", options.version,
                                                      ", rank ", registration.rank(), " is ",
                                                      registration.version()));
  }
  const std::string difference = SpecDifference(options.spec, registration.spec());
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model spec differs between the coordinator (here) and rank ", registration.rank(),
                     " (there): ", difference));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<CheckpointId>> ChooseFirst(const ResumePolicy& policy,
                                                        const CheckpointCatalogue& catalogue) {
  if (policy.kind == ResumePolicy::Kind::kNone) return std::optional<CheckpointId>();
  const std::vector<v1::CheckpointInfo> common = catalogue.Common();
  if (common.empty() && catalogue.AnyRankHolds()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no checkpoint is whole on every shard: ", catalogue.Describe(),
                     "; restore the missing files, or begin anew with --resume=none"));
  }
  if (policy.kind == ResumePolicy::Kind::kLatest) {
    if (common.empty()) return std::optional<CheckpointId>();
    return std::optional(CheckpointIdFromProto(common.back().id()));
  }
  std::vector<int64_t> steps;
  for (auto checkpoint = common.rbegin(); checkpoint != common.rend(); ++checkpoint) {
    if (checkpoint->id().step() == policy.step) return std::optional(CheckpointIdFromProto(checkpoint->id()));
    steps.insert(steps.begin(), checkpoint->id().step());
  }
  return absl::NotFoundError(absl::StrCat("no checkpoint of step ", policy.step, "; there are ",
                                          steps.empty() ? "none" : absl::StrJoin(steps, ", ")));
}

std::optional<CheckpointId> ChooseAgain(uint64_t lineage, const std::optional<CheckpointId>& began_from,
                                        const CheckpointCatalogue& catalogue) {
  std::optional<CheckpointId> newest;
  for (const v1::CheckpointInfo& checkpoint : catalogue.Common()) {
    const CheckpointId id = CheckpointIdFromProto(checkpoint.id());
    if (id.lineage == lineage || id == began_from) newest = id;  // oldest first, and lineages only grow
  }
  return newest;
}

}  // namespace ccs
