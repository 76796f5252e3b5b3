#include "server/cluster/formation.h"

#include <string>

#include "absl/strings/str_cat.h"
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
  if (registration.step_log() != options.step_log) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--step_log or --checkpoint_dir differ: the coordinator keeps ", options.step_log ? "a" : "no",
        " step log, rank ", registration.rank(), " keeps ", registration.step_log() ? "one" : "none"));
  }
  const std::string difference = SpecDifference(options.spec, registration.spec());
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model spec differs between the coordinator (here) and rank ", registration.rank(),
                     " (there): ", difference));
  }
  return absl::OkStatus();
}

}  // namespace ccs
