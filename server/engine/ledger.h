// What a shard remembers besides its rows, so that nothing is applied twice.
#ifndef CCS_SERVER_ENGINE_LEDGER_H_
#define CCS_SERVER_ENGINE_LEDGER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/types.h"

namespace ccs {

// As of one position; a checkpoint holds it as the record "ledger" (CBOR). Bounded: the last 256 committed
// writes, and the replies of the last step, since no trainer can ask for an earlier one.
struct Ledger {
  static constexpr char kRecordName[] = "ledger";

  int64_t index = 0;  // of the position
  RunState run;
  std::vector<CommittedWrite> writes;  // oldest first
  std::vector<AnsweredSlice> answers;  // of the last step, on this shard

  void AddWrite(CommittedWrite write);
  bool Contains(const std::string& write_id) const;

  std::string ToRecord() const;
  // DATA_LOSS for anything that ToRecord does not make.
  static absl::StatusOr<Ledger> FromRecord(const std::string& record);
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_LEDGER_H_
