// ccsctl's subcommands. Each prints to `out` and returns the cluster's refusal, if any.
#ifndef CCS_CLIENT_CTL_COMMANDS_H_
#define CCS_CLIENT_CTL_COMMANDS_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/ctl/npy.h"
#include "client/ctl/remote.h"

namespace ccs::client {

enum class Format { kText, kJson };  // text is a table, of centres CSV

absl::Status ShowStatus(const Remote& remote, Format format, std::ostream& out);
absl::Status ListCheckpoints(const Remote& remote, Format format, std::ostream& out);
absl::Status TakeCheckpoint(const Remote& remote, Format format, std::ostream& out);
absl::Status ReleaseCheckpoint(const Remote& remote, const ccs::v1::CheckpointId& id, std::ostream& out);
absl::Status CloseRun(const Remote& remote, const std::string& run_id, std::ostream& out);

// The k centres nearest to the centres of `class_ids`, or to the rows of `queries`.
absl::Status NearestToClasses(const Remote& remote, const std::vector<int64_t>& class_ids, int k,
                              Format format, std::ostream& out);
absl::Status NearestToQueries(const Remote& remote, const Matrix& queries, int k, Format format,
                              std::ostream& out);

// One line a class, read some at a time: steps may fall between them.
absl::Status PrintCentres(const Remote& remote, const std::vector<int64_t>& class_ids, Format format,
                          std::ostream& out);

}  // namespace ccs::client

#endif  // CCS_CLIENT_CTL_COMMANDS_H_
