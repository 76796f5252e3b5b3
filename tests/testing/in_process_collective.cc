#include "tests/testing/in_process_collective.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ccs::testing {
namespace {

enum class Operation { kAllGather, kReduceScatter };

// What one rank brings to a round. Buffers are those of the caller, who waits.
struct Call {
  Operation operation;
  const void* send;
  void* receive;
  std::vector<size_t> counts;
  bool finished = false;  // set with `status` by the last rank to arrive
  absl::Status status;
};

void GatherAll(const std::vector<Call*>& calls) {
  for (Call* to : calls) {
    char* out = static_cast<char*>(to->receive);
    for (size_t from = 0; from < calls.size(); ++from) {
      const size_t bytes = to->counts[from];
      if (bytes > 0) std::memcpy(out, calls[from]->send, bytes);
      out += bytes;
    }
  }
}

void ReduceAll(const std::vector<Call*>& calls) {
  size_t offset = 0;
  for (size_t to = 0; to < calls.size(); ++to) {
    float* out = static_cast<float*>(calls[to]->receive);
    const size_t count = calls[to]->counts[to];
    for (size_t i = 0; i < count; ++i) {
      float sum = static_cast<const float*>(calls[0]->send)[offset + i];
      for (size_t from = 1; from < calls.size(); ++from) {
        sum += static_cast<const float*>(calls[from]->send)[offset + i];
      }
      out[i] = sum;
    }
    offset += count;
  }
}

// The ranks meet here; the last to arrive does the work of all under the lock.
class Group {
 public:
  Group(int size, CollectiveFaultHook fault_hook) : fault_hook_(std::move(fault_hook)), arrived_(size) {}

  int size() const { return static_cast<int>(arrived_.size()); }
  const CollectiveFaultHook& fault_hook() const { return fault_hook_; }

  absl::Status Run(int rank, Call call, absl::Time deadline) {
    const absl::Duration left = std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(24));
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left);
    std::unique_lock lock(mutex_);
    if (!broken_.empty()) return absl::UnavailableError(broken_);
    arrived_[rank] = &call;
    if (++num_arrived_ == size()) {
      FinishRound();
    } else {
      const bool woken = changed_.wait_until(lock, until, [&] { return call.finished || !broken_.empty(); });
      if (!call.finished) {
        arrived_[rank] = nullptr;
        --num_arrived_;
        if (woken) return absl::UnavailableError(broken_);
        BreakLocked(absl::StrCat("rank ", rank, " gave up waiting"));
        return absl::DeadlineExceededError("ranks did not arrive in time");
      }
    }
    return call.status;
  }

  void Break(const std::string& reason) {
    std::lock_guard lock(mutex_);
    BreakLocked(reason);
  }

 private:
  void BreakLocked(const std::string& reason) {
    if (broken_.empty()) broken_ = reason;
    changed_.notify_all();
  }

  void FinishRound() {
    absl::Status status;
    for (const Call* call : arrived_) {
      if (call->operation != arrived_[0]->operation || call->counts != arrived_[0]->counts) {
        status = absl::InternalError("the ranks disagree on operation or counts");
        BreakLocked("an earlier call failed");
      }
    }
    if (status.ok()) {
      arrived_[0]->operation == Operation::kAllGather ? GatherAll(arrived_) : ReduceAll(arrived_);
    }
    for (Call*& call : arrived_) {
      call->status = status;
      call->finished = true;
      call = nullptr;
    }
    num_arrived_ = 0;
    changed_.notify_all();
  }

  const CollectiveFaultHook fault_hook_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call*> arrived_;  // by rank; null where not (yet) there
  int num_arrived_ = 0;
  std::string broken_;  // why no further round can finish; empty while all is well
};

class InProcessCollective : public Collective {
 public:
  InProcessCollective(int rank, std::shared_ptr<Group> group) : rank_(rank), group_(std::move(group)) {}
  ~InProcessCollective() override { group_->Break(absl::StrCat("rank ", rank_, " is gone")); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  absl::Status AllGather(const void* send, void* receive, absl::Span<const size_t> bytes_per_rank,
                         absl::Time deadline) override {
    return Run(Operation::kAllGather, send, receive, bytes_per_rank, deadline);
  }

  absl::Status ReduceScatter(const float* send, float* receive, absl::Span<const size_t> counts,
                             absl::Time deadline) override {
    return Run(Operation::kReduceScatter, send, receive, counts, deadline);
  }

  void Abort() override { group_->Break(absl::StrCat("rank ", rank_, " aborted")); }

 private:
  absl::Status Run(Operation operation, const void* send, void* receive, absl::Span<const size_t> counts,
                   absl::Time deadline) {
    if (static_cast<int>(counts.size()) != size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(counts.size(), " counts for a group of ", size(), " ranks"));
    }
    if (group_->fault_hook()) {
      if (absl::Status status = group_->fault_hook()(rank_, num_calls_++); !status.ok()) {
        group_->Break(absl::StrCat("rank ", rank_, " failed"));
        return status;
      }
    }
    return group_->Run(rank_, {operation, send, receive, {counts.begin(), counts.end()}, false, {}},
                       deadline);
  }

  const int rank_;
  const std::shared_ptr<Group> group_;
  int num_calls_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> MakeInProcessCollectives(int size, CollectiveFaultHook fault_hook) {
  const auto group = std::make_shared<Group>(size, std::move(fault_hook));
  std::vector<std::unique_ptr<Collective>> members;
  for (int rank = 0; rank < size; ++rank)
    members.push_back(std::make_unique<InProcessCollective>(rank, group));
  return members;
}

}  // namespace ccs::testing
