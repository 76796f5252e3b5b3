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
};

struct StepBenchResult {
  double step_s = 0;  // median, one step after another
  double samples_per_s = 0;
  double gradient_latency_s = 0;  // median from request to gradient, the engine idle before
  int64_t peak_rss_mib = 0;       // of the largest shard process
  int64_t state_bytes = 0;        // weights and momentum of the largest shard
  double loss = 0;                // of the last step
};

// Starts the cluster, first compares a small step of the same kind with the float64 reference (INTERNAL if it
// is off by more than the promised accuracy), then measures.
absl::StatusOr<StepBenchResult> RunStepBench(const StepBenchOptions& options);

}  // namespace ccs::bench

#endif  // CCS_TESTS_BENCH_STEP_BENCH_H_
