#include "server/engine/staged_writes.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ccs {

StagedWrites::StagedWrites(int dim, int64_t limit_bytes) : dim_(dim), limit_bytes_(limit_bytes) {}

absl::StatusOr<int64_t> StagedWrites::Add(const std::string& write_id, absl::Span<const int64_t> class_ids,
                                          absl::Span<const float> centres) {
  if (centres.size() != class_ids.size() * dim_) {
    return absl::InvalidArgumentError(absl::StrCat(class_ids.size(), " class ids of width ", dim_,
                                                   " came with ", centres.size(), " values"));
  }
  std::lock_guard lock(mutex_);
  const auto staged = writes_.find(write_id);
  std::set<int64_t> fresh;
  for (const int64_t id : class_ids) {
    if (staged == writes_.end() || !staged->second.contains(id)) fresh.insert(id);
  }
  const int64_t bytes = bytes_ + static_cast<int64_t>(fresh.size() * dim_ * sizeof(float));
  if (bytes > limit_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("staging these centres takes ", bytes,
                                                     " bytes in all, the limit is ", limit_bytes_,
                                                     "; commit what is staged first"));
  }
  if (class_ids.empty()) return staged == writes_.end() ? 0 : static_cast<int64_t>(staged->second.size());
  auto& rows = writes_[write_id];
  for (size_t i = 0; i < class_ids.size(); ++i) {
    const absl::Span<const float> centre = centres.subspan(i * dim_, dim_);
    rows[class_ids[i]].assign(centre.begin(), centre.end());
  }
  bytes_ = bytes;
  return static_cast<int64_t>(rows.size());
}

std::map<int64_t, std::vector<float>> StagedWrites::Take(const std::string& write_id) {
  std::lock_guard lock(mutex_);
  const auto staged = writes_.find(write_id);
  if (staged == writes_.end()) return {};
  std::map<int64_t, std::vector<float>> rows = std::move(staged->second);
  writes_.erase(staged);
  bytes_ -= static_cast<int64_t>(rows.size() * dim_ * sizeof(float));
  return rows;
}

void StagedWrites::Clear() {
  std::lock_guard lock(mutex_);
  writes_.clear();
  bytes_ = 0;
}

}  // namespace ccs
