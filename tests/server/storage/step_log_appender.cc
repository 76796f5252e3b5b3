// step_log_appender DIRECTORY: appends to the step log there, 16 KiB at a time, and prints the index of each
// record once it is promised; for tests that kill it.
#include <cstdio>

#include "tests/server/storage/step_log_test_util.h"

int main(int /*argc*/, char** argv) {
  const std::unique_ptr<ccs::StepLog> log = ccs::OpenLog(argv[1]);
  if (log == nullptr || log->List()->empty()) {
    if (!log->Begin(1, 0, "").ok()) return 1;
  }
  for (int64_t index = log->List()->front().last + 1;; ++index) {
    if (!log->Append(1, index, ccs::RecordOf(1, index, 16 << 10)).ok()) return 1;
    std::printf("%ld\n", static_cast<long>(index));
    std::fflush(stdout);
    if (index % 16 == 0 && !log->Cut(1, index - 8).ok()) return 1;
  }
}
