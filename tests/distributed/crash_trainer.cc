// One trainer as a process, for the crash tests: TRACE RANK TRAINERS STEPS TIMEOUT_S ADDRESS...
// Goes on after the last record of its trace, that of a former life included.
#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "tests/distributed/crash_trace.h"

namespace ccs::testing {
namespace {

struct Arguments {
  std::filesystem::path trace;
  int rank = 0;
  int trainers = 0;
  int64_t steps = 0;
  int timeout_s = 0;
  std::vector<std::string> addresses;
};

absl::StatusOr<Arguments> Parse(const std::vector<std::string>& words) {
  Arguments arguments;
  if (words.size() < 6 || !absl::SimpleAtoi(words[1], &arguments.rank) ||
      !absl::SimpleAtoi(words[2], &arguments.trainers) || !absl::SimpleAtoi(words[3], &arguments.steps) ||
      !absl::SimpleAtoi(words[4], &arguments.timeout_s)) {
    return absl::InvalidArgumentError("usage: crash_trainer TRACE RANK TRAINERS STEPS TIMEOUT_S ADDRESS...");
  }
  arguments.trace = words[0];
  arguments.addresses.assign(words.begin() + 5, words.end());
  return arguments;
}

absl::Status Train(const Arguments& arguments) {
  Trace trace = ReadTrace(arguments.trace);
  const auto client = client::Client::Connect(
      {.addresses = arguments.addresses, .timeout = absl::Seconds(arguments.timeout_s)});
  if (!client.ok()) return client.status();
  const auto run = (*client)->OpenRun({.run_id = "crash",
                                       .trainer_rank = arguments.rank,
                                       .num_trainers = arguments.trainers,
                                       .last_result = static_cast<int64_t>(trace.size())});
  if (!run.ok()) return run.status();
  while (static_cast<int64_t>(trace.size()) < arguments.steps) {
    const Rows rows = NextRows(trace, arguments.rank);
    const auto result =
        (*run)->Step({.features = rows.features, .labels = rows.labels, .learning_rate = kCrashLearningRate});
    if (!result.ok()) return result.status();
    TraceRecord record = {.step = result->step, .loss = result->loss, .gradient = {}};
    std::copy(result->feature_grad.begin(), result->feature_grad.end(), record.gradient.begin());
    if (absl::Status status = AppendTrace(arguments.trace, trace.size(), record); !status.ok()) return status;
    trace.push_back(record);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ccs::testing

int main(int argc, char** argv) {
  const auto arguments = ccs::testing::Parse({argv + 1, argv + argc});
  const absl::Status status = arguments.ok() ? ccs::testing::Train(*arguments) : arguments.status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "crash_trainer: %s\n", status.ToString().c_str());
  return 1;
}
