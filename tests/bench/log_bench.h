// `ccs-bench log`: what a synced append to one shard's step log costs on this machine's disk.
#ifndef CCS_TESTS_BENCH_LOG_BENCH_H_
#define CCS_TESTS_BENCH_LOG_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ccs::bench {

struct LogBenchOptions {
  std::string dir = ".";  // a new folder in it is used, and removed
  int batch = 1024;       // rows of a step
  int dim = 512;
  int shards = 2;  // a record is batch / shards * dim floats
  int appends = 200;
  int cut_every = 100;    // appends; cuts all but the last so many
  double interval_s = 0;  // between appends, for a step's other work
};

struct LogBenchResult {
  int64_t record_bytes = 0;
  double append_mean_s = 0;
  double append_p50_s = 0;
  double append_p99_s = 0;
  double plain_mean_s = 0;  // of a write and fdatasync of as many bytes to a growing file
  double plain_p50_s = 0;
  double plain_p99_s = 0;
  int64_t peak_disk_bytes = 0;  // of the log's folder, blocks in use
};

// Reads every record back that should be there, after opening again: DATA_LOSS if one is wrong.
absl::StatusOr<LogBenchResult> RunLogBench(const LogBenchOptions& options);

}  // namespace ccs::bench

#endif  // CCS_TESTS_BENCH_LOG_BENCH_H_
