// ccsctl as a process.
#ifndef CCS_TESTS_DISTRIBUTED_CTL_H_
#define CCS_TESTS_DISTRIBUTED_CTL_H_

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/process.h"

namespace ccs::testing {

// Returns the exit code; what ccsctl prints is left in `directory` and goes to *output.
inline int Ctl(const std::string& address, const std::filesystem::path& directory,
               std::vector<std::string> arguments, std::string* output) {
  static std::atomic<int> calls{0};
  const std::filesystem::path log = directory / absl::StrCat("ctl-", calls++);
  arguments.insert(arguments.begin(), {CCSCTL_BINARY, absl::StrCat("--address=", address)});
  absl::StatusOr<Process> process = Process::Start(arguments, log);
  EXPECT_TRUE(process.ok()) << process.status();
  const absl::StatusOr<int> exit = process->Wait(absl::Seconds(30));
  EXPECT_TRUE(exit.ok()) << exit.status();
  *output = ReadFile(log);
  return exit.value_or(-1);
}

}  // namespace ccs::testing

#endif  // CCS_TESTS_DISTRIBUTED_CTL_H_
