// The ids of checkpoints as people write them.
#ifndef CCS_CLIENT_CTL_CHECKPOINT_NAME_H_
#define CCS_CLIENT_CTL_CHECKPOINT_NAME_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ccs/v1/admin.pb.h"

namespace ccs::client {

// LINEAGE-STEP-NONCE, the nonce in 16 hexadecimal digits.
std::string CheckpointName(const ccs::v1::CheckpointId& id);
// The inverse. INVALID_ARGUMENT for anything else.
absl::StatusOr<ccs::v1::CheckpointId> ParseCheckpointName(absl::string_view text);

}  // namespace ccs::client

#endif  // CCS_CLIENT_CTL_CHECKPOINT_NAME_H_
