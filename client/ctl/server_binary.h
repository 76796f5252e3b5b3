// Commands that the server's binary does.
#ifndef CCS_CLIENT_CTL_SERVER_BINARY_H_
#define CCS_CLIENT_CTL_SERVER_BINARY_H_

#include "absl/status/status.h"

namespace ccs::client {

// Becomes `ccs-server argv[1] argv[2] ...`, argv ending with a null pointer: the one in this program's own
// folder, else the one on PATH. Returns only if there is none: NOT_FOUND, or what the system says.
absl::Status BecomeServer(char** argv);

}  // namespace ccs::client

#endif  // CCS_CLIENT_CTL_SERVER_BINARY_H_
