// What a trainer of the crash tests was given, step by step, on disk: it outlives the trainer.
#ifndef CCS_TESTS_DISTRIBUTED_CRASH_TRACE_H_
#define CCS_TESTS_DISTRIBUTED_CRASH_TRACE_H_

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/distributed/trainers.h"

namespace ccs::testing {

inline constexpr int kCrashClasses = 211;  // a shard has several blocks
inline constexpr int kCrashDim = 16;
inline constexpr int kCrashRows = 5;  // a trainer and step
inline constexpr float kCrashLearningRate = 0.1f;

// As textproto.
std::string CrashModel();

struct TraceRecord {
  int64_t step = 0;
  double loss = 0;
  std::array<float, size_t{kCrashRows} * kCrashDim> gradient{};
  friend bool operator==(const TraceRecord&, const TraceRecord&) = default;
};
using Trace = std::vector<TraceRecord>;

// The records that are whole.
Trace ReadTrace(const std::filesystem::path& path);
int64_t TraceLength(const std::filesystem::path& path);
// Puts `record` behind the `records` whole ones, on disk before this returns.
absl::Status AppendTrace(const std::filesystem::path& path, size_t records, const TraceRecord& record);

// A trainer's rows of the step after `trace`: made from the bits of the last gradient, so that a reply that
// is wrong, lost or given twice changes all that follows.
Rows NextRows(const Trace& trace, int trainer_rank);

}  // namespace ccs::testing

#endif  // CCS_TESTS_DISTRIBUTED_CRASH_TRACE_H_
