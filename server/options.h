// How one shard server is told what to do.
#ifndef CCS_SERVER_OPTIONS_H_
#define CCS_SERVER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ccs {

// One field per flag of the same name; see `ccs-server --help`.
struct ServerOptions {
  // ---- Group.
  int rank = 0;
  int num_shards = 1;
  // Where rank 0 listens; not used by rank 0.
  std::string coordinator = "127.0.0.1:8001";

  // ---- Addresses, host:port. Port 0: any free port.
  std::string listen = "127.0.0.1:8001";
  // What trainers and the other shards are told; empty: `listen`, with the port it got.
  std::string advertise;
  // "off": no metrics are served.
  std::string metrics = "127.0.0.1:8002";
  // The address that the other shards' collectives connect to; empty: the host of `advertise`.
  std::string collective_host;
  // Allows listening in plaintext on more than the loopback interface.
  bool allow_plaintext = false;

  // ---- Model and state.
  std::string model;              // a ccs.v1.ModelSpec as textproto; required
  std::string checkpoint_dir;     // empty: no checkpoints
  int64_t checkpoint_every = 0;   // steps; 0: only when asked for, and when stopping
  std::string checkpoint_mirror;  // empty: none
  int keep_checkpoints = 3;       // at least 1
  // For copies of rows that change before a checkpoint has written them; when it is full, steps wait.
  int64_t checkpoint_staging_bytes = int64_t{256} << 20;
  std::string resume = "latest";  // or a step, or "none"
  std::string step_log = "sync";  // or "off"

  // ---- Resources.
  std::string device = "cpu";
  int threads = 0;                              // 0: one a processor
  int64_t memory_limit_bytes = 0;               // 0: what the machine and the control group have to spare
  int64_t max_message_bytes = 0;                // 0: what a step of max_batch rows needs, and at least 16 MiB
  int64_t max_staged_bytes = int64_t{1} << 30;  // of centres written and not yet committed

  // ---- Time.
  int64_t step_timeout_ms = 60'000;        // from a step's first slice to its start
  int64_t collective_timeout_ms = 60'000;  // of one exchange between shards
  int64_t heartbeat_interval_ms = 1'000;
  int64_t heartbeat_timeout_ms = 10'000;  // a shard silent for longer is lost
  int64_t run_lease_ms = 600'000;         // a run idle for longer may be replaced
  int64_t drain_timeout_ms = 120'000;     // for the last checkpoint when stopping

  // ---- For people and for tests.
  std::string log_level = "info";  // trace, debug, info, warning, error, off
  // Takes each step's sampled rows from here/shard<rank>/sampled_<step>.npy. Empty: the sampler.
  std::string replay_samples;
};

// What a command line asks for.
struct CommandLine {
  ServerOptions options;
  std::string text;  // to be printed instead of running: the help or the version
};

// Fills the options from flags, and from the file given by --config. INVALID_ARGUMENT names the flag.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

// INVALID_ARGUMENT names the flag, its value and what would do.
absl::Status ValidateOptions(const ServerOptions& options);

// The parts of host:port; an IPv6 host in brackets, which stay. INVALID_ARGUMENT names the address.
struct HostPort {
  std::string host;
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(const std::string& address);

}  // namespace ccs

#endif  // CCS_SERVER_OPTIONS_H_
