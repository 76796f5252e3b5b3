// A cluster of real ccs-server processes on the loopback interface.
#ifndef CCS_TESTS_TESTING_PROCESS_CLUSTER_H_
#define CCS_TESTS_TESTING_PROCESS_CLUSTER_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ccs/client/client.h"
#include "tests/testing/process.h"

namespace ccs::testing {

struct ProcessClusterOptions {
  std::string server_binary;
  int num_shards = 1;
  std::string model;               // textproto
  std::vector<std::string> flags;  // for every shard
  int threads = 1;                 // a shard
  std::string coordinator = "";    // where the others find rank 0; empty: at its address
  // By rank: where it listens, and the words before its command line. Empty: the loopback interface, none.
  std::vector<std::string> hosts = {};
  std::vector<std::vector<std::string>> launchers = {};
};

// Logs go to DIR/shard-R.log, checkpoints to DIR/checkpoints. Not thread-safe.
class ProcessCluster {
 public:
  // Writes the model file; starts nothing.
  ProcessCluster(ProcessClusterOptions options, const std::filesystem::path& directory);
  ~ProcessCluster();
  ProcessCluster(const ProcessCluster&) = delete;
  ProcessCluster& operator=(const ProcessCluster&) = delete;

  absl::Status StartShard(int rank, const std::vector<std::string>& more_flags = {},
                          const std::vector<std::string>& environment = {});
  // From its next start on, at another port.
  void Move(int rank);
  absl::Status StartAll(const std::vector<std::string>& more_flags = {});
  Process& shard(int rank) { return *shards_[rank]; }
  // SIGTERM to all; the first exit status that is not 0 is an error with the end of that shard's log.
  absl::Status Stop(absl::Duration timeout = absl::Seconds(60));

  absl::StatusOr<std::unique_ptr<client::Client>> Connect(absl::Duration timeout = absl::Seconds(60)) const;
  std::string address(int rank) const;
  int port(int rank) const { return ports_[rank]; }
  int metrics_port(int rank) const { return metrics_ports_[rank]; }
  std::string log(int rank) const;
  std::string logs() const;  // of all, one after another
  // Has every shard written a checkpoint of this step, by its log? DEADLINE_EXCEEDED after a while.
  absl::Status WaitCheckpoint(int64_t step, absl::Duration timeout = absl::Seconds(30)) const;
  std::filesystem::path checkpoint_dir() const { return directory_ / "checkpoints"; }

 private:
  ProcessClusterOptions options_;
  std::filesystem::path directory_;
  std::vector<int> ports_;
  std::vector<int> metrics_ports_;
  std::vector<std::optional<Process>> shards_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_PROCESS_CLUSTER_H_
