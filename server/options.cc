#include "server/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/version.h"

namespace ccs {
namespace {

constexpr std::array<absl::string_view, 6> kLogLevels = {"trace", "debug", "info", "warning", "error", "off"};

// ---- Flags.

// Those of one heading of the help.
class FlagGroup {
 public:
  FlagGroup(CLI::App& app, const char* heading) : app_(app), heading_(heading) {}

  template <typename Value>
  void Add(const char* flag, Value& value, const char* help) {
    app_.add_option(flag, value, help)->capture_default_str()->group(heading_);
  }
  void AddSwitch(const char* flag, bool& value, const char* help) {
    app_.add_flag(flag, value, help)->group(heading_);
  }

 private:
  CLI::App& app_;
  const char* const heading_;
};

void AddGroupFlags(CLI::App& app, ServerOptions& o) {
  FlagGroup flags(app, "Group");
  flags.Add("--rank", o.rank, "This shard's number, from 0");
  flags.Add("--num_shards", o.num_shards, "Shards in the group");
  flags.Add("--coordinator", o.coordinator, "host:port where rank 0 listens; rank 0 does not use it");
}

void AddAddressFlags(CLI::App& app, ServerOptions& o) {
  FlagGroup flags(app, "Addresses (host:port, port 0 takes any free one)");
  flags.Add("--listen", o.listen, "Where gRPC is served");
  flags.Add("--advertise", o.advertise,
            "Where trainers and other shards reach this one (default: --listen with its actual port)");
  flags.Add("--metrics", o.metrics, "Where /metrics is served, or 'off'");
  flags.Add("--collective_host", o.collective_host,
            "Interface on which shards exchange arrays (default: the host of --advertise)");
  flags.AddSwitch("--allow_plaintext", o.allow_plaintext,
                  "Allow --listen on more than the loopback interface, without encryption or authentication");
}

void AddStateFlags(CLI::App& app, ServerOptions& o) {
  FlagGroup flags(app, "Model and state");
  flags.Add("--model", o.model, "Model spec, a textproto of ccs.v1.ModelSpec (required)");
  flags.Add("--checkpoint_dir", o.checkpoint_dir, "Where checkpoints are kept (default: none are)");
  flags.Add("--checkpoint_mirror", o.checkpoint_mirror,
            "A second place to which checkpoints are copied, and from which lost ones are restored");
  flags.Add("--checkpoint_every", o.checkpoint_every,
            "Steps between checkpoints; 0: only when asked for, and when stopping");
  flags.Add("--keep_checkpoints", o.keep_checkpoints,
            "Checkpoints kept, at least 1, besides those that trainers ask for");
  flags.Add(
      "--checkpoint_staging_bytes", o.checkpoint_staging_bytes,
      "Memory for rows that change before the checkpoint being written has them; steps wait when it is full");
  flags.Add("--resume", o.resume, "Where a cluster that starts goes on: latest, a step, or none");
  flags.Add(
      "--step_log", o.step_log,
      "sync: with a --checkpoint_dir, every step is on disk before it is answered; off: a crash goes back to "
      "the last checkpoint");
}

void AddResourceFlags(CLI::App& app, ServerOptions& o) {
  FlagGroup flags(app, "Resources");
  flags.Add("--device", o.device, "Where the arithmetic is done: cpu");
  flags.Add("--threads", o.threads, "Threads of the arithmetic; 0: one a processor");
  flags.Add("--memory_limit_bytes", o.memory_limit_bytes,
            "Most memory for weights, momentum and workspace; 0: what machine and control group have left");
  flags.Add("--max_message_bytes", o.max_message_bytes,
            "Largest gRPC message; 0: what a step of max_batch rows needs, and at least 16 MiB");
  flags.Add("--max_staged_bytes", o.max_staged_bytes, "Most memory for centres written, not yet committed");
}

void AddTimeFlags(CLI::App& app, ServerOptions& o) {
  FlagGroup flags(app, "Time");
  flags.Add("--step_timeout_ms", o.step_timeout_ms, "From a step's first slice to its start");
  flags.Add("--collective_timeout_ms", o.collective_timeout_ms, "For one exchange between shards");
  flags.Add("--heartbeat_interval_ms", o.heartbeat_interval_ms, "Between signs of life");
  flags.Add("--heartbeat_timeout_ms", o.heartbeat_timeout_ms, "A shard silent for longer is lost");
  flags.Add("--run_lease_ms", o.run_lease_ms, "A run idle for longer may be replaced by another");
  flags.Add("--drain_timeout_ms", o.drain_timeout_ms, "For the last checkpoint when stopping");
}

void AddOtherFlags(CLI::App& app, ServerOptions& o) {
  FlagGroup flags(app, "Other");
  flags.Add("--log_level", o.log_level, "trace, debug, info, warning, error or off");
  flags.Add("--replay_samples", o.replay_samples,
            "Folder whose shard<rank>/sampled_<step>.npy replace the sampler's draws (tests)");
}

// ---- Validation.

absl::Status Refuse(absl::string_view flag, absl::string_view value, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", want));
}

absl::Status CheckAtLeast(absl::string_view flag, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return Refuse(flag, absl::StrCat(value), absl::StrCat("must be at least ", least));
}

absl::Status CheckAddress(absl::string_view flag, const std::string& address) {
  if (ParseHostPort(address).ok()) return absl::OkStatus();
  return Refuse(flag, address, "must be host:port with a port in [0, 65535]");
}

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

bool IsWildcard(absl::string_view host) { return host == "0.0.0.0" || host == "[::]"; }

absl::Status CheckGroup(const ServerOptions& o) {
  if (absl::Status status = CheckAtLeast("num_shards", o.num_shards, 1); !status.ok()) return status;
  if (o.rank < 0 || o.rank >= o.num_shards) {
    return Refuse("rank", absl::StrCat(o.rank),
                  absl::StrCat("must be in [0, ", o.num_shards, "), --num_shards"));
  }
  if (o.rank == 0) return absl::OkStatus();
  return CheckAddress("coordinator", o.coordinator);
}

absl::Status CheckAddresses(const ServerOptions& o) {
  if (absl::Status status = CheckAddress("listen", o.listen); !status.ok()) return status;
  if (o.metrics != "off") {
    if (absl::Status status = CheckAddress("metrics", o.metrics); !status.ok()) return status;
  }
  if (!o.advertise.empty()) {
    if (absl::Status status = CheckAddress("advertise", o.advertise); !status.ok()) return status;
  }
  const std::string host = ParseHostPort(o.listen)->host;
  if (!IsLoopback(host) && !o.allow_plaintext) {
    return Refuse("listen", o.listen,
                  "is not on the loopback interface, where anybody could read and write the model; add "
                  "--allow_plaintext if the network is trusted");
  }
  if (IsWildcard(host) && o.advertise.empty()) {
    return Refuse("listen", o.listen,
                  "is every interface: say with --advertise which address others shall use");
  }
  return absl::OkStatus();
}

absl::Status CheckState(const ServerOptions& o) {
  if (o.model.empty())
    return absl::InvalidArgumentError("--model is required: a textproto of ccs.v1.ModelSpec");
  if (absl::Status status = CheckAtLeast("checkpoint_every", o.checkpoint_every, 0); !status.ok())
    return status;
  if (absl::Status status = CheckAtLeast("checkpoint_staging_bytes", o.checkpoint_staging_bytes, 0);
      !status.ok())
    return status;
  if (absl::Status status = CheckAtLeast("keep_checkpoints", o.keep_checkpoints, 1); !status.ok())
    return status;
  if (!o.checkpoint_mirror.empty() && o.checkpoint_dir.empty()) {
    return Refuse("checkpoint_mirror", o.checkpoint_mirror, "needs --checkpoint_dir");
  }
  if (!o.checkpoint_mirror.empty() && o.checkpoint_mirror == o.checkpoint_dir) {
    return Refuse("checkpoint_mirror", o.checkpoint_mirror, "must be another place than --checkpoint_dir");
  }
  if (o.checkpoint_every > 0 && o.checkpoint_dir.empty()) {
    return Refuse("checkpoint_every", absl::StrCat(o.checkpoint_every), "needs --checkpoint_dir");
  }
  int64_t step = 0;
  const bool is_step = absl::SimpleAtoi(o.resume, &step) && step >= 0;
  if (!is_step && o.resume != "latest" && o.resume != "none") {
    return Refuse("resume", o.resume, "must be latest, none or a step");
  }
  if (o.step_log != "sync" && o.step_log != "off")
    return Refuse("step_log", o.step_log, "must be sync or off");
  if (is_step && o.checkpoint_dir.empty()) return Refuse("resume", o.resume, "needs --checkpoint_dir");
  return absl::OkStatus();
}

absl::Status CheckResources(const ServerOptions& o) {
  if (o.device != "cpu") return Refuse("device", o.device, "this build has only cpu");
  if (absl::Status status = CheckAtLeast("threads", o.threads, 0); !status.ok()) return status;
  if (absl::Status status = CheckAtLeast("memory_limit_bytes", o.memory_limit_bytes, 0); !status.ok())
    return status;
  if (absl::Status status = CheckAtLeast("max_staged_bytes", o.max_staged_bytes, 0); !status.ok())
    return status;
  if (o.max_message_bytes < 0 || o.max_message_bytes > std::numeric_limits<int>::max()) {
    return Refuse("max_message_bytes", absl::StrCat(o.max_message_bytes),
                  "must be in [0, 2^31), which gRPC can do");
  }
  return absl::OkStatus();
}

absl::Status CheckTimes(const ServerOptions& o) {
  const std::array<std::pair<absl::string_view, int64_t>, 6> times = {{
      {"step_timeout_ms", o.step_timeout_ms},
      {"collective_timeout_ms", o.collective_timeout_ms},
      {"heartbeat_interval_ms", o.heartbeat_interval_ms},
      {"heartbeat_timeout_ms", o.heartbeat_timeout_ms},
      {"run_lease_ms", o.run_lease_ms},
      {"drain_timeout_ms", o.drain_timeout_ms},
  }};
  for (const auto& [flag, value] : times) {
    if (absl::Status status = CheckAtLeast(flag, value, 1); !status.ok()) return status;
  }
  if (o.heartbeat_timeout_ms >= 2 * o.heartbeat_interval_ms) return absl::OkStatus();
  return Refuse("heartbeat_timeout_ms", absl::StrCat(o.heartbeat_timeout_ms),
                absl::StrCat("must be at least twice --heartbeat_interval_ms=", o.heartbeat_interval_ms));
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  CommandLine result;
  CLI::App app(
      "Class Centre Service: one shard server. It owns a range of class centres; trainers send it features "
      "and labels.",
      "ccs-server");
  app.set_version_flag("--version", std::string(kVersion));
  app.get_formatter()->column_width(42);
  app.footer("ccs-server reshard rewrites a checkpoint for another number of shards; see its --help.");
  AddGroupFlags(app, result.options);
  AddAddressFlags(app, result.options);
  AddStateFlags(app, result.options);
  AddResourceFlags(app, result.options);
  AddTimeFlags(app, result.options);
  app.set_config("--config", "", "Ini file with the flags below, without their dashes")->group("Other");
  AddOtherFlags(app, result.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    result.text = absl::StrCat("ccs-server ", version.what(), "\n");
  } catch (const CLI::CallForHelp&) {
    result.text = app.help();
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return result;
}

absl::Status ValidateOptions(const ServerOptions& options) {
  for (const auto check : {CheckGroup, CheckAddresses, CheckState, CheckResources, CheckTimes}) {
    if (absl::Status status = check(options); !status.ok()) return status;
  }
  if (std::find(kLogLevels.begin(), kLogLevels.end(), options.log_level) != kLogLevels.end()) {
    return absl::OkStatus();
  }
  return Refuse("log_level", options.log_level, "must be trace, debug, info, warning, error or off");
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  HostPort result;
  if (colon != std::string::npos && colon > 0 && absl::SimpleAtoi(address.substr(colon + 1), &result.port) &&
      result.port >= 0 && result.port <= 65535) {
    result.host = address.substr(0, colon);
    const bool bracketed = result.host.front() == '[' && result.host.back() == ']';
    if (bracketed || result.host.find(':') == std::string::npos) return result;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not host:port"));
}

}  // namespace ccs
