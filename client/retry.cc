#include "client/retry.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/status.h"

namespace ccs::client {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
constexpr absl::Duration kLookInterval = absl::Seconds(1);
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);

// Doubles with every attempt; a random half of it keeps clients from coming back all at once.
Clock::duration Pause(int attempts) {
  thread_local std::minstd_rand random(std::random_device{}());
  const absl::Duration whole = std::min(kLongestPause, kFirstPause * (1 << std::min(attempts - 1, 10)));
  return absl::ToChronoNanoseconds(whole * std::uniform_real_distribution<>(0.5, 1.0)(random));
}

// The calls of one SendAll. Everything but Finished runs on the caller's thread.
class Batch {
 public:
  Batch(absl::Span<const Call> calls, const SendOptions& options) : options_(options), states_(calls.size()) {
    for (size_t i = 0; i < calls.size(); ++i) states_[i].call = &calls[i];
  }

  std::vector<absl::Status> Run() {
    for (;;) {
      const Clock::time_point wake_up = StartDue();
      std::vector<Reply> replies = WaitForReplies(wake_up);
      for (Reply& reply : replies) Handle(states_[reply.call], reply.status);
      LookAgain();
      if (std::all_of(states_.begin(), states_.end(), [](const State& s) { return s.phase == kDone; })) break;
    }
    std::vector<absl::Status> result;
    for (State& state : states_) result.push_back(std::move(state.status));
    return result;
  }

 private:
  enum Phase { kWaiting, kSent, kDone };
  struct State {
    const Call* call = nullptr;
    Phase phase = kWaiting;
    int attempts = 0;
    Clock::time_point next_attempt = Clock::time_point::min();
    Clock::time_point attempt_deadline;
    std::unique_ptr<grpc::ClientContext> context;
    std::shared_ptr<const void> server;  // that the attempt is with
    absl::Status status;
  };
  struct Reply {
    size_t call;
    grpc::Status status;
  };

  const Call::Target& TargetOf(const State& state) const {
    return state.call->targets[(state.attempts - 1) % state.call->targets.size()];
  }

  // Starts the attempts whose time has come; returns when the next one's will.
  Clock::time_point StartDue() {
    Clock::time_point wake_up = Clock::time_point::max();
    for (size_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      if (state.phase != kWaiting) continue;
      if (state.next_attempt <= Clock::now()) {
        Start(i);
      } else {
        wake_up = std::min(wake_up, state.next_attempt);
      }
    }
    return wake_up;
  }

  void LookAgain() {
    const Clock::time_point now = Clock::now();
    const bool is_time = options_.look_again && now >= next_look_ &&
                         std::any_of(states_.begin(), states_.end(), [](const State& state) {
                           return state.phase == kWaiting && state.attempts >= 2;
                         });
    if (!is_time) return;
    next_look_ = now + absl::ToChronoNanoseconds(kLookInterval);
    options_.look_again(std::min(options_.deadline, next_look_));
  }

  void Start(size_t i) {
    State& state = states_[i];
    const Clock::time_point now = Clock::now();
    state.attempt_deadline = std::min(options_.deadline, DeadlineAfter(options_.attempt_timeout));
    state.context = std::make_unique<grpc::ClientContext>();
    state.context->set_deadline(std::chrono::system_clock::now() + (state.attempt_deadline - now));
    state.phase = kSent;
    ++state.attempts;
    state.server = TargetOf(state).send(state.context.get(),
                                        [this, i](grpc::Status status) { Finished(i, std::move(status)); });
  }

  void Finished(size_t i, grpc::Status status) {
    // Notifies under the lock: once it is released, the waiting thread may destroy this object.
    const std::lock_guard lock(mutex_);
    replies_.push_back({i, std::move(status)});
    arrived_.notify_one();
  }

  std::vector<Reply> WaitForReplies(Clock::time_point wake_up) {
    std::unique_lock lock(mutex_);
    const auto any = [this] { return !replies_.empty(); };
    if (wake_up == Clock::time_point::max()) {
      arrived_.wait(lock, any);
    } else {
      arrived_.wait_until(lock, wake_up, any);
    }
    return std::exchange(replies_, {});
  }

  void Handle(State& state, const grpc::Status& reply) {
    const absl::Status last_failure = std::exchange(state.status, FromGrpc(reply, TargetOf(state).name));
    state.phase = kDone;
    if (state.status.ok() || cancelled_) return;
    const bool cut_short =
        absl::IsDeadlineExceeded(state.status) && state.attempt_deadline < options_.deadline;
    if (absl::IsUnavailable(state.status) || cut_short) {
      const Clock::time_point next_attempt = Clock::now() + Pause(state.attempts);
      if (state.attempts < options_.max_attempts && next_attempt < options_.deadline) {
        state.next_attempt = next_attempt;
        state.phase = kWaiting;
        return;
      }
    }
    if (state.attempts > 1) {
      // A time-out alone does not say what the attempts before it ran into.
      const std::string before =
          absl::IsDeadlineExceeded(state.status) ? absl::StrCat("; the last: ", last_failure.message()) : "";
      state.status = Append(state.status, absl::StrCat(" (after ", state.attempts, " attempts", before, ")"));
    }
    CancelOthers();
  }

  // Their answers are of no more use, and some may be waiting for the call that failed.
  void CancelOthers() {
    cancelled_ = true;
    for (State& other : states_) {
      if (other.phase == kSent) other.context->TryCancel();
      if (other.phase == kWaiting) other.phase = kDone;
    }
  }

  const SendOptions options_;
  std::vector<State> states_;
  Clock::time_point next_look_ = Clock::time_point::min();
  bool cancelled_ = false;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Reply> replies_;
};

}  // namespace

Clock::time_point DeadlineAfter(absl::Duration timeout) {
  return Clock::now() + absl::ToChronoNanoseconds(std::min(timeout, kLongestTimeout));
}

std::vector<absl::Status> SendAll(absl::Span<const Call> calls, const SendOptions& options) {
  return calls.empty() ? std::vector<absl::Status>() : Batch(calls, options).Run();
}

absl::Status Send(absl::Span<const Call> calls, const SendOptions& options) {
  if (calls.empty()) return absl::OkStatus();
  return MostInformative(SendAll(calls, options));
}

}  // namespace ccs::client
