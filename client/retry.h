// Sends requests concurrently and again while the answer is "not now".
#ifndef CCS_CLIENT_RETRY_H_
#define CCS_CLIENT_RETRY_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ccs::client {

using Clock = std::chrono::steady_clock;

// Now plus `timeout`, at most a year.
Clock::time_point DeadlineAfter(absl::Duration timeout);

// One idempotent request and the servers that may be asked: attempt n goes to target n modulo their number.
struct Call {
  struct Target {
    std::string name;  // for messages
    // Starts an attempt; must call `done` exactly once, from any thread. What it returns lives until then,
    // and dies on another thread than that of `done`.
    std::function<std::shared_ptr<const void>(grpc::ClientContext* context,
                                              std::function<void(grpc::Status)> done)>
        send;
  };
  std::vector<Target> targets;
};

struct SendOptions {
  Clock::time_point deadline;
  // An attempt that takes longer is given up and the next one made.
  absl::Duration attempt_timeout = absl::InfiniteDuration();
  int max_attempts = std::numeric_limits<int>::max();
  // Called between attempts, no more often than every second, when a server has been UNAVAILABLE twice: it
  // may have moved. Must return by the time given.
  std::function<void(Clock::time_point deadline)> look_again = {};
};

// Sends all calls at once and waits for them. UNAVAILABLE is retried with growing, jittered pauses until the
// deadline or max_attempts; any other error is final, and cancels the calls still under way. Every attempt
// carries the time that is left. Returns one status a call, in order.
std::vector<absl::Status> SendAll(absl::Span<const Call> calls, const SendOptions& options);

// SendAll reduced to OK or its most informative status.
absl::Status Send(absl::Span<const Call> calls, const SendOptions& options);

}  // namespace ccs::client

#endif  // CCS_CLIENT_RETRY_H_
