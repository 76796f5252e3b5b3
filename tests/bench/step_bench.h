// `ccs-bench step`: seconds a step of a real cluster of ccs-server processes, seen by its trainers.
#ifndef CCS_TESTS_BENCH_STEP_BENCH_H_
#define CCS_TESTS_BENCH_STEP_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ccs::bench {

struct StepBenchOptions {
  std::string server_binary;
  int64_t classes = 360000;
  int dim = 512;
  int batch = 1024;  // rows of all trainers
  double sample_rate = 0.1;
  int shards = 2;   // and as many trainers
  int threads = 1;  // a shard
  int steps = 5;    // measured, after one that is not
  std::string precision = "fp32";
  std::string data = "random";
  uint64_t seed = 1;
  // Empty: neither checkpoints nor a step log. Else a folder on the disk to be measured, used below a new
  // name.
  std::string checkpoint_dir;
  std::string step_log = "sync";
  int checkpoint_every = 0;
  int64_t checkpoint_staging_bytes = int64_t{256} << 20;
};

// What checkpoints and the step log cost the slowest shard; from its metrics.
struct DurabilityCost {
  double log_wait_s = 0;         // a step, beyond pass 1
  double stall_s = 0;            // of all steps
  int64_t checkpoints = 0;       // written
  double checkpoint_s = 0;       // to write one, mean
  int64_t checkpoint_bytes = 0;  // of the last
  int64_t written_bytes = 0;     // by all
};

struct StepBenchResult {
  double step_s = 0;       // median, one step after another
  double mean_step_s = 0;  // of the same
  double samples_per_s = 0;
  double gradient_latency_s = 0;  // median from request to gradient, the engine idle before
  int64_t peak_rss_mib = 0;       // of the largest shard process
  int64_t state_bytes = 0;        // weights and momentum of the largest shard
  double loss = 0;                // of the last step
  DurabilityCost durability;
};

// Starts the cluster, first compares a small step of the same kind with the float64 reference (INTERNAL if it
// is off by more than the promised accuracy), then measures.
absl::StatusOr<StepBenchResult> RunStepBench(const StepBenchOptions& options);

}  // namespace ccs::bench

#endif  // CCS_TESTS_BENCH_STEP_BENCH_H_
