// The member's state, shared by the files that implement it:
//   member.cc        what other threads ask of it
//   member_loop.cc   its thread: one stream after another, registration, heartbeats
//   member_epoch.cc  what it does at the coordinator's word
#ifndef CCS_SERVER_CLUSTER_MEMBER_IMPL_H_
#define CCS_SERVER_CLUSTER_MEMBER_IMPL_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "server/cluster/member.h"
#include "server/cluster/pending_proposals.h"

namespace ccs {

// Waits on the system's clock, which the thread sanitizer understands.
template <typename Predicate>
bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, absl::Duration duration,
             Predicate predicate) {
  const absl::Duration bounded = std::clamp(duration, absl::ZeroDuration(), absl::Hours(24));
  return changed.wait_until(lock, std::chrono::system_clock::now() + absl::ToChronoMicroseconds(bounded),
                            predicate);
}

class Member::Impl {
 public:
  Impl(MemberOptions options, ControlConnector* connector)
      : options_(std::move(options)), connector_(connector) {}

  void SetParts(const Parts& parts) { parts_ = parts; }
  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  void Propose(v1::Propose proposal, PendingProposals::Done done);
  absl::Status Drain(const std::string& reason);
  void Stop();
  absl::Status Wait();

  v1::Layout layout() const {
    std::lock_guard lock(mutex_);
    return serving_ ? layout_ : v1::Layout();
  }
  bool serving() const {
    std::lock_guard lock(mutex_);
    return serving_;
  }
  std::string state() const {
    std::lock_guard lock(mutex_);
    return state_;
  }

  // Sends what `fill` makes of a message and the epoch, if there is one.
  template <typename Fill>
  void SendInEpoch(Fill fill) {
    std::lock_guard lock(mutex_);
    if (epoch_ == 0 || !stream_) return;
    v1::ShardMessage message;
    fill(message, epoch_);
    stream_->Send(std::move(message));
  }

 private:
  struct Beat {};
  struct Closed {
    absl::Status why;
  };
  using Event = std::variant<v1::CoordinatorMessage, Beat, Closed>;

  void Run();
  bool Connect();
  // Serves one stream; returns why that is over.
  absl::Status ServeStream();
  Event NextEvent(absl::Time until);
  void LeaveStream(const absl::Status& why);
  void Pause(absl::Duration duration);

  void Register();
  absl::Status FillRegistration(v1::Register* registration);
  void SendHeartbeat();
  void AskForState();
  void Send(v1::ShardMessage message);

  void Handle(const v1::CoordinatorMessage& message);
  void OnRefused(const absl::Status& status);
  void OnForm(const v1::Form& form);
  void OnPeers(const v1::Peers& peers);
  void OnServe(const v1::Serve& serve);
  void OnGo(const v1::Go& go);
  void OnStep(const v1::Go& go);
  void OnResult(const v1::Result& result);
  void OnDisband(const absl::Status& why);
  void EndEpoch(const absl::Status& why);
  absl::StatusOr<std::vector<std::string>> ExchangeBlobs(uint64_t epoch, std::string blob,
                                                         absl::Time deadline);

  bool InEpoch(uint64_t epoch) const {
    std::lock_guard lock(mutex_);
    return epoch_ == epoch;
  }
  // Logs it if it is news.
  void SetState(const std::string& state);
  static void FailAll(const std::vector<PendingProposals::Done>& waiting, const absl::Status& why) {
    for (const PendingProposals::Done& done : waiting) done(why);
  }

  const MemberOptions options_;
  ControlConnector* const connector_;
  Parts parts_;
  std::thread thread_;
  std::mutex join_mutex_;

  // Of the member's thread.
  EpochPlan plan_;
  std::optional<absl::Time> register_at_;
  std::optional<absl::Time> refused_since_;
  bool answered_ = false;  // the stream has brought something
  bool has_served_ = false;

  mutable std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  std::unique_ptr<ControlStream> stream_;
  std::deque<v1::CoordinatorMessage> inbox_;
  std::optional<absl::Status> closed_;
  absl::Time heard_;
  PendingProposals proposals_;
  std::string state_ = "starting";
  uint64_t epoch_ = 0;  // from Form on
  bool serving_ = false;
  v1::Layout layout_;
  std::optional<std::vector<std::string>> peers_;
  bool stopping_ = false;
  bool leaving_ = false;                // stops once the group has disbanded
  std::optional<absl::Status> result_;  // set: the thread ends, or has ended
  bool finished_ = false;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_MEMBER_IMPL_H_
