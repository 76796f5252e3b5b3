// One run of a small cluster whose processes are killed and stopped while they train.
#ifndef CCS_TESTS_DISTRIBUTED_CRASH_CASE_H_
#define CCS_TESTS_DISTRIBUTED_CRASH_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/distributed/crash_trace.h"

namespace ccs::testing {

// What happens to one process.
struct Blow {
  enum class Victim { kShard, kTrainer };
  Victim victim = Victim::kShard;
  int rank = 0;
  bool stop = false;  // SIGSTOP, not SIGKILL
  // A shard's fault point, and the arrival that counts. Empty: when `at_step` steps are done, and a little
  // later.
  std::string point;
  int arrival = 0;
  int64_t at_step = 0;
  int delay_us = 0;
  // A stopped shard that the others have given up is killed and started anew, instead of going on; a stopped
  // trainer is replaced, and goes on while its successor trains.
  bool replace = false;
  // The fault point is that of the shard as it is started again, after a blow before this one.
  bool after_restart = false;

  std::string ToString() const;
};

struct CrashPlan {
  int shards = 1;
  int trainers = 1;
  int64_t steps = 20;
  int checkpoint_every = 5;  // 0: never
  std::vector<Blow> blows;

  std::string ToString() const;
};

struct CrashResult {
  std::vector<Trace> traces;    // by trainer
  std::vector<float> weight;    // [classes, dim]
  std::vector<float> momentum;  // [classes, dim]
  uint64_t lineage = 0;         // at the end
  double longest_notice_s = 0;  // from a shard's stop to another's word of its silence
  std::vector<std::string> problems;
};

// Runs the plan in processes of its own; the calling thread is their parent. Every blow must hit, a stopped
// shard be noticed, a replaced trainer be refused when it comes back: else a problem says so.
CrashResult RunCrashPlan(const CrashPlan& plan);

// What differs from the run without blows.
std::vector<std::string> Differences(const CrashResult& got, const CrashResult& want);

}  // namespace ccs::testing

#endif  // CCS_TESTS_DISTRIBUTED_CRASH_CASE_H_
