// Queries of this shard's clients that wait for their place in the order.
#ifndef CCS_SERVER_ENGINE_PENDING_QUERIES_H_
#define CCS_SERVER_ENGINE_PENDING_QUERIES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/engine.h"

namespace ccs {

// The input of one query. Labels are empty for a nearest-centre query.
struct Query {
  std::vector<float> features;  // [rows, dim]
  std::vector<int64_t> labels;  // [rows]
};

// Each query is answered exactly once, by whoever answers it first. Thread-safe; callbacks run without the
// lock held.
class PendingQueries {
 public:
  using EvaluateDone = std::function<void(absl::StatusOr<EvaluateResult>)>;
  using NearestDone = std::function<void(absl::StatusOr<NearestResult>)>;

  uint64_t Add(Query query, EvaluateDone done) { return AddAny(std::move(query), std::move(done)); }
  uint64_t Add(Query query, NearestDone done) { return AddAny(std::move(query), std::move(done)); }

  // The input, or null if the query has been answered.
  std::shared_ptr<const Query> Find(uint64_t id) const;
  // INVALID_ARGUMENT to the asker if the query is of the other kind. Nothing if it has been answered.
  void Answer(uint64_t id, EvaluateResult result) { AnswerAny<EvaluateDone>(id, result); }
  void Answer(uint64_t id, NearestResult result) { AnswerAny<NearestDone>(id, std::move(result)); }
  void Fail(uint64_t id, const absl::Status& status);
  void FailAll(const absl::Status& status);

 private:
  struct Entry {
    std::shared_ptr<const Query> query;
    std::variant<EvaluateDone, NearestDone> done;
  };

  uint64_t AddAny(Query query, std::variant<EvaluateDone, NearestDone> done);
  // An empty entry (no query) if it has been answered.
  Entry Take(uint64_t id);
  template <typename Done, typename Result>
  void AnswerAny(uint64_t id, Result result) {
    const Entry entry = Take(id);
    if (entry.query == nullptr) return;
    if (const Done* done = std::get_if<Done>(&entry.done)) {
      (*done)(std::move(result));
    } else {
      FailEntry(entry, absl::InvalidArgumentError("the query was ordered as one of another kind"));
    }
  }
  static void FailEntry(const Entry& entry, const absl::Status& status);

  mutable std::mutex mutex_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Entry> entries_;
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_PENDING_QUERIES_H_
