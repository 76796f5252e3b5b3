#include "tests/testing/process_cluster.h"

#include <signal.h>

#include <fstream>
#include <regex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ccs::testing {

ProcessCluster::ProcessCluster(ProcessClusterOptions options, const std::filesystem::path& directory)
    : options_(std::move(options)), directory_(directory), shards_(options_.num_shards) {
  for (int rank = 0; rank < options_.num_shards; ++rank) {
    ports_.push_back(FreePort());
    metrics_ports_.push_back(FreePort());
  }
  std::ofstream(directory_ / "model.textproto") << options_.model;
}

ProcessCluster::~ProcessCluster() {
  shards_.clear();
  for (const int port : ports_) ReturnPort(port);
  for (const int port : metrics_ports_) ReturnPort(port);
}

absl::Status ProcessCluster::StartShard(int rank, const std::vector<std::string>& more_flags,
                                        const std::vector<std::string>& environment) {
  std::vector<std::string> argv;
  if (!options_.launchers.empty()) argv = options_.launchers[rank];
  const std::string coordinator = options_.coordinator.empty() ? address(0) : options_.coordinator;
  argv.insert(
      argv.end(),
      {options_.server_binary, absl::StrCat("--rank=", rank),
       absl::StrCat("--num_shards=", options_.num_shards), absl::StrCat("--coordinator=", coordinator),
       absl::StrCat("--listen=", address(rank)), absl::StrCat("--metrics=127.0.0.1:", metrics_ports_[rank]),
       absl::StrCat("--model=", (directory_ / "model.textproto").string()),
       absl::StrCat("--threads=", options_.threads)});
  argv.insert(argv.end(), options_.flags.begin(), options_.flags.end());
  argv.insert(argv.end(), more_flags.begin(), more_flags.end());
  shards_[rank].reset();  // a former process that was killed may still hold what this one needs
  absl::StatusOr<Process> process =
      Process::Start(argv, directory_ / absl::StrCat("shard-", rank, ".log"), environment);
  if (!process.ok()) return process.status();
  shards_[rank].emplace(*std::move(process));
  return absl::OkStatus();
}

void ProcessCluster::Move(int rank) {
  const int former = ports_[rank];  // not to be given again at once
  ports_[rank] = FreePort();
  ReturnPort(former);
}

absl::Status ProcessCluster::StartAll(const std::vector<std::string>& more_flags) {
  for (int rank = 0; rank < options_.num_shards; ++rank) {
    if (absl::Status started = StartShard(rank, more_flags); !started.ok()) return started;
  }
  return absl::OkStatus();
}

absl::Status ProcessCluster::Stop(absl::Duration timeout) {
  for (std::optional<Process>& shard : shards_) {
    if (shard) shard->Signal(SIGTERM);
  }
  absl::Status result;
  for (int rank = 0; rank < options_.num_shards; ++rank) {
    if (!shards_[rank]) continue;
    const absl::StatusOr<int> exit = shards_[rank]->Wait(timeout);
    if (!exit.ok()) {
      result.Update(
          absl::Status(exit.status().code(),
                       absl::StrCat("shard ", rank, ": ", exit.status().message(), "\n", log(rank))));
    } else if (*exit != 0) {
      result.Update(
          absl::InternalError(absl::StrCat("shard ", rank, " exited with ", *exit, "\n", log(rank))));
    }
    shards_[rank].reset();
  }
  return result;
}

absl::StatusOr<std::unique_ptr<client::Client>> ProcessCluster::Connect(absl::Duration timeout) const {
  client::ClientOptions client;
  client.addresses.clear();
  for (int rank = 0; rank < options_.num_shards; ++rank) client.addresses.push_back(address(rank));
  client.timeout = timeout;
  return client::Client::Connect(client);
}

std::string ProcessCluster::address(int rank) const {
  return absl::StrCat(options_.hosts.empty() ? "127.0.0.1" : options_.hosts[rank], ":", ports_[rank]);
}

std::string ProcessCluster::log(int rank) const {
  return ReadFile(directory_ / absl::StrCat("shard-", rank, ".log"));
}

std::string ProcessCluster::logs() const {
  std::string all;
  for (int rank = 0; rank < options_.num_shards; ++rank) absl::StrAppend(&all, "\n", log(rank));
  return all;
}

absl::Status ProcessCluster::WaitCheckpoint(int64_t step, absl::Duration timeout) const {
  const std::regex written(absl::StrCat("checkpoint [0-9]+-", step, "-[0-9a-f]+ written"));
  const absl::Time end = absl::Now() + timeout;
  for (int rank = 0; rank < options_.num_shards;) {
    if (std::regex_search(log(rank), written)) {
      ++rank;
      continue;
    }
    if (absl::Now() > end) {
      return absl::DeadlineExceededError(
          absl::StrCat("shard ", rank, " has written no checkpoint of step ", step, ":\n", log(rank)));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  return absl::OkStatus();
}

}  // namespace ccs::testing
