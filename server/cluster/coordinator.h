// Puts everything that involves all shards in one order; lives on rank 0.
#ifndef CCS_SERVER_CLUSTER_COORDINATOR_H_
#define CCS_SERVER_CLUSTER_COORDINATOR_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/model_spec.h"

namespace ccs {

// Which checkpoint a freshly started cluster begins with.
struct ResumePolicy {
  enum class Kind { kLatest, kNone, kStep } kind = Kind::kLatest;
  int64_t step = 0;  // of kStep
};

struct CoordinatorOptions {
  int num_shards = 1;
  v1::ModelSpec spec;
  std::string version;
  ResumePolicy resume;
  bool has_checkpoint_dir = false;
  bool step_log = false;
  int64_t checkpoint_interval_steps = 0;                 // 0: only when asked for
  absl::Duration step_timeout = absl::Seconds(60);       // from a step's first slice to Go
  int keep_checkpoints = 3;                              // as the engines do; older ones leave the list
  absl::Duration heartbeat_timeout = absl::Seconds(10);  // a shard silent for longer is lost
  absl::Duration stall_timeout = absl::Seconds(120);     // so is one whose busy engine gets no further
  absl::Duration run_lease = absl::Minutes(10);          // a run silent for longer may be replaced
  std::function<uint64_t()> make_nonce = {};             // of checkpoints; null: at random
};

// A state machine without threads or network: messages in, messages out, time through Tick.
//
//   forming: every rank registers (differing specs, versions, counts and duplicate ranks are refused with
//   both
//     values named); a checkpoint that is whole on every rank is chosen; Form, Peers, Serve.
//   serving: steps get Go when all slices are there and agree, or fail; proposals get their place in the
//   order. draining: a shard was asked to stop: one last checkpoint of all, then Disband. A lost stream, a
//   missed heartbeat or an EpochFailed disbands the group; its members register again and form under a new
//   epoch, from what they have in memory and on disk (recovery.h).
//
// Thread-safe. `send` functions must not block or call back.
class Coordinator {
 public:
  using Send = std::function<void(const v1::CoordinatorMessage&)>;
  using ConnectionId = uint64_t;

  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();

  ConnectionId Connect(Send send);
  void Receive(ConnectionId connection, const v1::ShardMessage& message);
  void Disconnect(ConnectionId connection, const absl::Status& why);
  // Checks deadlines; call it at least every 100 ms or so.
  void Tick(absl::Time now);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_COORDINATOR_H_
