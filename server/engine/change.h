// What changes a shard's state, as the step log keeps it.
#ifndef CCS_SERVER_ENGINE_CHANGE_H_
#define CCS_SERVER_ENGINE_CHANGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/types.h"

namespace ccs {

// A step with this shard's slices; the operation's choices of versions and its checkpoint are not part of it.
struct StepChange {
  StepOperation operation;
  std::vector<std::shared_ptr<const Slice>> slices;  // by trainer rank
};

// A committed write with this shard's rows.
struct WriteChange {
  CommittedWrite write;
  std::map<int64_t, std::vector<float>> rows;  // by class id
};

struct RunChange {
  RunState run;
};

using Change = std::variant<StepChange, WriteChange, RunChange>;

// The records are CBOR (RFC 8949): a map with the key "kind" ("step", "write" or "run"); floats and labels as
// little-endian byte strings. Every bit is kept.
std::string EncodeChange(const Change& change);
// DATA_LOSS for anything that EncodeChange does not make. A decoded slice knows its trainer, step, params,
// gradient_scale, features, labels and digest; run, incarnation, lineage and deadline are those of nobody.
absl::StatusOr<Change> DecodeChange(const std::string& record);

std::string EncodeOrigin(const Origin& origin);
absl::StatusOr<Origin> DecodeOrigin(const std::string& record);

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_CHANGE_H_
