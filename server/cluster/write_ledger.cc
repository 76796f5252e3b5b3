#include "server/cluster/write_ledger.h"

namespace ccs {
namespace {

constexpr size_t kRememberedWrites = 256;

}  // namespace

void WriteLedger::Staged(int rank, const std::string& write_id, int64_t rows) {
  if (!committed_.contains(write_id)) staged_[write_id][rank] = rows;
}

int64_t WriteLedger::StagedRows(const std::string& write_id) const {
  const auto found = staged_.find(write_id);
  if (found == staged_.end()) return 0;
  int64_t rows = 0;
  for (const auto& [rank, staged] : found->second) rows += staged;
  return rows;
}

void WriteLedger::Committed(const std::string& write_id, int64_t rows) {
  staged_.erase(write_id);
  if (!committed_.emplace(write_id, rows).second) return;
  committed_order_.push_back(write_id);
  if (committed_order_.size() <= kRememberedWrites) return;
  committed_.erase(committed_order_.front());
  committed_order_.pop_front();
}

std::optional<int64_t> WriteLedger::CommittedRows(const std::string& write_id) const {
  const auto found = committed_.find(write_id);
  if (found == committed_.end()) return std::nullopt;
  return found->second;
}

}  // namespace ccs
