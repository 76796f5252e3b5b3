#include "server/stop_signals.h"

#include <pthread.h>
#include <signal.h>

namespace ccs {
namespace {

sigset_t Both() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t signals = Both();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

std::optional<int> StopSignals::Wait(absl::Duration timeout) {
  const sigset_t signals = Both();
  const timespec time = absl::ToTimespec(timeout);
  const int signal = sigtimedwait(&signals, nullptr, &time);
  return signal > 0 ? std::optional<int>(signal) : std::nullopt;
}

void StopSignals::LetThrough() {
  const sigset_t signals = Both();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace ccs
