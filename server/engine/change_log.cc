#include "server/engine/change_log.h"

#include <utility>

namespace ccs {

void ChangeLog::Append(const Position& position, Change change) {
  if (log_ == nullptr || replaying_) return;
  writing_ = std::async(std::launch::async, [log = log_, position, change = std::move(change)] {
    return log->Append(position.lineage, position.index, {position.step, EncodeChange(change)});
  });
}

absl::Status ChangeLog::Wait() { return writing_.valid() ? writing_.get() : absl::OkStatus(); }

absl::StatusOr<LogRecord> ChangeLog::Read(const Position& position) {
  if (log_ == nullptr) return absl::FailedPreconditionError("this shard has no step log to replay");
  return log_->Read(position.lineage, position.index);
}

absl::Status ChangeLog::Settle(const EpochPlan& plan, const Position& position) {
  if (log_ == nullptr) return absl::OkStatus();
  if (plan.begins_lineage) return log_->Begin(plan.lineage, position.step, EncodeOrigin(plan.origin));
  return log_->Truncate(plan.lineage, position.index);
}

absl::Status ChangeLog::Cut(const Position& position) {
  return log_ == nullptr ? absl::OkStatus() : log_->Cut(position.lineage, position.index);
}

}  // namespace ccs
