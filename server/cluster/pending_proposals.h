// Proposals whose outcome a shard waits for.
#ifndef CCS_SERVER_CLUSTER_PENDING_PROPOSALS_H_
#define CCS_SERVER_CLUSTER_PENDING_PROPOSALS_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace ccs {

// Hands out each callback once; the caller runs it. Not thread-safe.
class PendingProposals {
 public:
  using Done = std::function<void(absl::StatusOr<v1::Result>)>;

  // Returns the token. `of_epoch`: the proposal has no meaning after the current epoch.
  uint64_t Add(bool of_epoch, Done done) {
    pending_[++last_token_] = {of_epoch, std::move(done)};
    return last_token_;
  }
  // Null if the token is unknown.
  Done Take(uint64_t token) {
    auto item = pending_.extract(token);
    return item.empty() ? Done() : std::move(item.mapped().done);
  }
  std::vector<Done> TakeOfEpoch() {
    std::vector<Done> taken;
    std::erase_if(pending_, [&taken](auto& item) {
      if (item.second.of_epoch) taken.push_back(std::move(item.second.done));
      return item.second.of_epoch;
    });
    return taken;
  }
  std::vector<Done> TakeAll() {
    std::vector<Done> taken;
    for (auto& [token, entry] : pending_) taken.push_back(std::move(entry.done));
    pending_.clear();
    return taken;
  }

 private:
  struct Entry {
    bool of_epoch;
    Done done;
  };
  uint64_t last_token_ = 0;
  std::map<uint64_t, Entry> pending_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_PENDING_PROPOSALS_H_
