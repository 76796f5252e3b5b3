// Class ids as written on a command line.
#ifndef CCS_CLIENT_CTL_CLASS_IDS_H_
#define CCS_CLIENT_CTL_CLASS_IDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ccs::client {

// "1,2,10-20" as [1, 2, 10, 11, ..., 20], in the order written. INVALID_ARGUMENT names the piece that is not
// an id or an ascending range, or says that there are more than ten million.
absl::StatusOr<std::vector<int64_t>> ParseClassIds(absl::string_view text);

}  // namespace ccs::client

#endif  // CCS_CLIENT_CTL_CLASS_IDS_H_
