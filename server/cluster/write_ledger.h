// Which writes of centres are staged, and which are committed.
#ifndef CCS_SERVER_CLUSTER_WRITE_LEDGER_H_
#define CCS_SERVER_CLUSTER_WRITE_LEDGER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace ccs {

// Of one epoch. Not thread-safe.
class WriteLedger {
 public:
  // `rank` has `rows` rows staged under the id, in all. Nothing happens if it is committed.
  void Staged(int rank, const std::string& write_id, int64_t rows);
  // Over all ranks.
  int64_t StagedRows(const std::string& write_id) const;
  // Remembers the last 256 ids, as the shards do; its staged rows are gone.
  void Committed(const std::string& write_id, int64_t rows);
  // The rows of a committed write.
  std::optional<int64_t> CommittedRows(const std::string& write_id) const;

 private:
  std::map<std::string, std::map<int, int64_t>> staged_;  // id, rank
  std::map<std::string, int64_t> committed_;
  std::deque<std::string> committed_order_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_WRITE_LEDGER_H_
