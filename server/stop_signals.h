// SIGTERM and SIGINT, received where the program wants them.
#ifndef CCS_SERVER_STOP_SIGNALS_H_
#define CCS_SERVER_STOP_SIGNALS_H_

#include <optional>

#include "absl/time/time.h"

namespace ccs {

// Construct in the main thread before any other is started: the signals wait from then on, in every thread,
// until Wait takes them.
class StopSignals {
 public:
  StopSignals();

  // The next one, if it comes within `timeout`.
  std::optional<int> Wait(absl::Duration timeout);
  // Gives the calling thread the signals' usual effect again: the next one ends the process at once.
  void LetThrough();
};

}  // namespace ccs

#endif  // CCS_SERVER_STOP_SIGNALS_H_
