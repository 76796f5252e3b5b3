#include "server/cluster/collective.h"

#include "absl/strings/str_cat.h"
#include "server/cluster/gloo_collective.h"
#include "server/cluster/local_collective.h"

namespace ccs {

absl::StatusOr<std::unique_ptr<Collective>> MakeCpuCollective(const CollectiveOptions& options,
                                                              const Rendezvous& rendezvous) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in a group of ", options.size));
  }
  if (options.size == 1) return MakeLocalCollective();
  return MakeGlooCollective(options, rendezvous);
}

}  // namespace ccs
