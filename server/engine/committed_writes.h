// Which writes of centres the state contains, so that none is applied twice.
#ifndef CCS_SERVER_ENGINE_COMMITTED_WRITES_H_
#define CCS_SERVER_ENGINE_COMMITTED_WRITES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/types.h"

namespace ccs {

// The last 256 committed writes, oldest first. A checkpoint holds them in its record "ledger":
//   {"version": 1, "committed_writes": [{"write_id": "...", "rows": 3}, ...]}
// Thread-safety: none.
class CommittedWrites {
 public:
  static constexpr char kRecordName[] = "ledger";

  void Add(CommittedWrite write);
  bool Contains(const std::string& write_id) const;
  const std::vector<CommittedWrite>& writes() const { return writes_; }

  std::string ToRecord() const;
  // DATA_LOSS for anything that ToRecord does not write.
  static absl::StatusOr<CommittedWrites> FromRecord(const std::string& record);

 private:
  std::vector<CommittedWrite> writes_;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_COMMITTED_WRITES_H_
