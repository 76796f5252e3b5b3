// One shard server, from its options to its exit code.
#ifndef CCS_SERVER_SHARD_H_
#define CCS_SERVER_SHARD_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/options.h"

namespace ccs {

inline constexpr int kExitClean = 0;
inline constexpr int kExitBadOptions = 1;
inline constexpr int kExitCannotServe = 2;  // cannot start, or the coordinator refuses this shard
inline constexpr int kExitNotDrained = 3;   // stopped as asked, but without the last checkpoint

// All parts of one shard, put together and taken apart in the right order. WaitUntilStopped may be called
// from any thread, the rest from one.
class Shard {
 public:
  // `options` have been validated. Allocates, listens and begins to join the group. RESOURCE_EXHAUSTED if the
  // shard does not fit into memory, before it is allocated; other errors name the file or the address.
  static absl::StatusOr<std::unique_ptr<Shard>> Start(const ServerOptions& options);
  // Stops without a word to the others.
  ~Shard();

  // Blocks until the shard has left the group for good: OK after Drain, else why the coordinator refuses it.
  absl::Status WaitUntilStopped();
  // Has the group checkpoint and leaves it, with or without success.
  absl::Status Drain(const std::string& reason);
  // Lets the health service say whether the group serves at present.
  void UpdateHealth();
  bool serving() const;
  // host:port of gRPC, as advertised.
  const std::string& address() const;

 private:
  struct Parts;
  explicit Shard(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

// Runs a shard until SIGTERM or SIGINT has drained it, a second one has ended it at once, or it cannot go on.
// Returns the exit code. Called from the main thread before any other exists.
int RunShard(const ServerOptions& options);

}  // namespace ccs

#endif  // CCS_SERVER_SHARD_H_
