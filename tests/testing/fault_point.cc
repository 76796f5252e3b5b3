// Ends or stops the process at a fault point, as CCS_FAULT=point:arrival:action says:
// "log/before_sync:3:kill" is SIGKILL where the third write to the log would be synced, ":stop" SIGSTOP.
#include "server/fault_point.h"

#include <signal.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace ccs {
namespace {

struct Fault {
  std::string point;  // empty: none
  int arrival = 0;
  int signal = 0;
};

Fault FromEnvironment() {
  const char* const text = std::getenv("CCS_FAULT");
  if (text == nullptr) return {};
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  Fault fault;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &fault.arrival) ||
      (parts[2] != "kill" && parts[2] != "stop")) {
    std::fprintf(stderr, "CCS_FAULT=%s is not point:arrival:kill or :stop\n", text);
    std::abort();
  }
  fault.point = parts[0];
  fault.signal = parts[2] == "kill" ? SIGKILL : SIGSTOP;
  return fault;
}

}  // namespace

void ReachFaultPoint(const char* name) {
  static const Fault fault = FromEnvironment();
  static std::atomic<int> arrivals = 0;
  if (name == fault.point && ++arrivals == fault.arrival) raise(fault.signal);
}

}  // namespace ccs
