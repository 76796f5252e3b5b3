#include "server/engine/pending_queries.h"

#include <utility>

namespace ccs {

uint64_t PendingQueries::AddAny(Query query, std::variant<EvaluateDone, NearestDone> done) {
  std::lock_guard lock(mutex_);
  entries_[++last_id_] = {std::make_shared<const Query>(std::move(query)), std::move(done)};
  return last_id_;
}

std::shared_ptr<const Query> PendingQueries::Find(uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  return entry == entries_.end() ? nullptr : entry->second.query;
}

PendingQueries::Entry PendingQueries::Take(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto node = entries_.extract(id);
  return node.empty() ? Entry{} : std::move(node.mapped());
}

void PendingQueries::FailEntry(const Entry& entry, const absl::Status& status) {
  std::visit([&](const auto& done) { done(status); }, entry.done);
}

void PendingQueries::Fail(uint64_t id, const absl::Status& status) {
  if (const Entry entry = Take(id); entry.query != nullptr) FailEntry(entry, status);
}

void PendingQueries::FailAll(const absl::Status& status) {
  std::map<uint64_t, Entry> entries;
  {
    std::lock_guard lock(mutex_);
    entries.swap(entries_);
  }
  for (const auto& [id, entry] : entries) FailEntry(entry, status);
}

}  // namespace ccs
