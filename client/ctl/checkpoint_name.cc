#include "client/ctl/checkpoint_name.h"

#include <cstdint>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ccs::client {

std::string CheckpointName(const ccs::v1::CheckpointId& id) {
  return absl::StrCat(id.lineage(), "-", id.step(), "-", absl::Hex(id.nonce(), absl::kZeroPad16));
}

absl::StatusOr<ccs::v1::CheckpointId> ParseCheckpointName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '-');
  uint64_t lineage = 0;
  int64_t step = 0;
  uint64_t nonce = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &lineage) || !absl::SimpleAtoi(parts[1], &step) ||
      !absl::SimpleHexAtoi(parts[2], &nonce)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a checkpoint's name, LINEAGE-STEP-NONCE as 'ccsctl list' shows it"));
  }
  ccs::v1::CheckpointId id;
  id.set_lineage(lineage);
  id.set_step(step);
  id.set_nonce(nonce);
  return id;
}

}  // namespace ccs::client
