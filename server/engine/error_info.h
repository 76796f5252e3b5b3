// Typed details of an error, carried by an absl::Status as a payload until the RPC layer sends them.
#ifndef CCS_SERVER_ENGINE_ERROR_INFO_H_
#define CCS_SERVER_ENGINE_ERROR_INFO_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/types.h"

namespace ccs {

struct ErrorInfo {
  std::string reason = {};                 // a word for metrics and programs, e.g. "label_out_of_range"
  std::optional<Position> position = {};   // ABORTED and unexpected steps
  int64_t expected_step = 0;               // unexpected steps
  std::vector<int> missing_trainers = {};  // DEADLINE_EXCEEDED of a step
};

// Returns `status` with the info attached (JSON in a payload).
absl::Status WithErrorInfo(absl::Status status, const ErrorInfo& info);
// The info attached, if any.
std::optional<ErrorInfo> GetErrorInfo(const absl::Status& status);

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_ERROR_INFO_H_
