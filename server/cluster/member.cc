#include "server/cluster/member.h"

#include <spdlog/spdlog.h>

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

#include "absl/strings/str_cat.h"
#include "server/cluster/messages.h"
#include "server/cluster/pending_proposals.h"
#include "server/cluster/status_proto.h"
#include "server/engine/error_info.h"

namespace ccs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr absl::Duration kConnectTimeout = absl::Seconds(1);
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

absl::Time Now() {  // monotonic: a wall clock that is set must not look like silence
  return absl::UnixEpoch() + absl::FromChrono(Clock::now().time_since_epoch());
}

// Waits on the system's clock, which the thread sanitizer understands.
template <typename Predicate>
bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, absl::Duration duration,
             Predicate predicate) {
  const absl::Duration bounded = std::clamp(duration, absl::ZeroDuration(), absl::Hours(24));
  return changed.wait_until(lock, std::chrono::system_clock::now() + absl::ToChronoMicroseconds(bounded),
                            predicate);
}

// Another process has this rank: perhaps a former life of this one that the coordinator still waits for.
bool MayPass(const absl::Status& refusal) { return refusal.code() == absl::StatusCode::kAlreadyExists; }

constexpr char kNotServing[] = "not_serving";

// Nothing is left to drain: another rank has had it done, or the group is not together.
bool IsDrained(const absl::Status& status) {
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  return info && (info->reason == "draining" || info->reason == kNotServing);
}

}  // namespace

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
  void OnRun(const v1::Go& go);
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

// ---------------------------------------------------------------- the thread

void Member::Impl::Run() {
  absl::Duration pause = kFirstPause;
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_ && !result_) result_ = absl::OkStatus();
      if (result_) break;
    }
    answered_ = false;
    if (Connect()) LeaveStream(ServeStream());
    pause = answered_ ? kFirstPause : std::min(pause * 2, kLongestPause);
    Pause(pause);
  }
  std::lock_guard lock(mutex_);
  finished_ = true;
  state_ = result_->ok() ? "stopped" : std::string(result_->message());
  changed_.notify_all();
}

bool Member::Impl::Connect() {
  ControlHandlers handlers;
  handlers.on_message = [this](v1::CoordinatorMessage message) {
    std::lock_guard lock(mutex_);
    heard_ = Now();
    inbox_.push_back(std::move(message));
    changed_.notify_all();
  };
  handlers.on_closed = [this](absl::Status why) {
    std::lock_guard lock(mutex_);
    closed_ = std::move(why);
    changed_.notify_all();
  };
  absl::StatusOr<std::unique_ptr<ControlStream>> stream =
      connector_->Connect(std::move(handlers), kConnectTimeout);
  if (!stream.ok()) {
    SetState(absl::StrCat("the coordinator does not answer: ", stream.status().message()));
    return false;
  }
  std::lock_guard lock(mutex_);
  stream_ = *std::move(stream);
  heard_ = Now();
  return true;
}

absl::Status Member::Impl::ServeStream() {
  Register();
  absl::Time next_beat = Now();
  while (true) {
    const Event event = NextEvent(std::min(next_beat, register_at_.value_or(absl::InfiniteFuture())));
    if (const auto* closed = std::get_if<Closed>(&event)) return closed->why;
    if (const auto* message = std::get_if<v1::CoordinatorMessage>(&event)) {
      answered_ = true;
      Handle(*message);
    }
    if (register_at_ && Now() >= *register_at_) Register();
    if (Now() < next_beat) continue;
    next_beat = Now() + options_.heartbeat_interval;
    SendHeartbeat();
    AskForState();
  }
}

Member::Impl::Event Member::Impl::NextEvent(absl::Time until) {
  std::unique_lock lock(mutex_);
  WaitFor(changed_, lock, until - Now(),
          [this] { return stopping_ || result_ || closed_ || !inbox_.empty(); });
  if (result_) return Closed{result_->ok() ? absl::UnavailableError("this shard has left") : *result_};
  if (stopping_) return Closed{absl::UnavailableError("this shard is stopping")};
  if (!inbox_.empty()) {
    Event event = std::move(inbox_.front());
    inbox_.pop_front();
    return event;
  }
  if (closed_)
    return Closed{absl::UnavailableError(absl::StrCat("the coordinator is lost: ", closed_->message()))};
  if (Now() - heard_ > options_.heartbeat_timeout) {
    return Closed{absl::UnavailableError(
        absl::StrCat("the coordinator was silent for ", absl::FormatDuration(options_.heartbeat_timeout)))};
  }
  return Beat{};
}

void Member::Impl::LeaveStream(const absl::Status& why) {
  SetState(std::string(why.message()));
  std::unique_ptr<ControlStream> stream;
  std::vector<PendingProposals::Done> waiting;
  {
    std::lock_guard lock(mutex_);
    stream = std::move(stream_);
    waiting = proposals_.TakeAll();
  }
  stream.reset();  // waits for handlers, which take the lock
  FailAll(waiting, why);
  EndEpoch(why);
  register_at_.reset();
  std::lock_guard lock(mutex_);
  inbox_.clear();
  closed_.reset();
}

void Member::Impl::Pause(absl::Duration duration) {
  std::unique_lock lock(mutex_);
  WaitFor(changed_, lock, duration, [this] { return stopping_ || result_; });
}

void Member::Impl::Send(v1::ShardMessage message) {
  std::lock_guard lock(mutex_);
  stream_->Send(std::move(message));
}

void Member::Impl::SetState(const std::string& state) {
  std::lock_guard lock(mutex_);
  if (state_ == state) return;
  state_ = state;
  spdlog::info("rank {}: {}", options_.registration.rank(), state);
}

// ---------------------------------------------------------------- registration and heartbeats

void Member::Impl::Register() {
  register_at_.reset();
  v1::ShardMessage message;
  v1::Register* registration = message.mutable_register_();
  *registration = options_.registration;
  if (parts_.checkpoints) {
    const absl::StatusOr<std::vector<StoredCheckpoint>> checkpoints = parts_.checkpoints->List();
    if (!checkpoints.ok()) {
      SetState(absl::StrCat("the checkpoints cannot be read: ", checkpoints.status().message()));
      register_at_ = Now() + options_.heartbeat_interval;
      return;
    }
    for (const StoredCheckpoint& checkpoint : *checkpoints) {
      *registration->add_checkpoints() = CheckpointInfoToProto(checkpoint);
    }
  }
  std::lock_guard lock(mutex_);
  heard_ = Now();  // ending an epoch and reading checkpoints may have taken long
  stream_->Send(std::move(message));
}

void Member::Impl::SendHeartbeat() {
  const EngineProgress progress = parts_.engine->progress();
  v1::ShardMessage message;
  message.mutable_heartbeat()->set_step(progress.step);
  message.mutable_heartbeat()->set_activity(progress.activity);
  message.mutable_heartbeat()->set_progress(progress.progress);
  message.mutable_heartbeat()->set_loss(progress.loss);
  Send(std::move(message));
}

// While the group forms, its state is the coordinator's to tell.
void Member::Impl::AskForState() {
  if (serving() || refused_since_ || register_at_) return;
  v1::Propose proposal;
  proposal.mutable_status();
  Propose(std::move(proposal), [this](const absl::StatusOr<v1::Result>& result) {
    if (result.ok() && result->cluster().state() == v1::FORMING && !serving()) {
      SetState(absl::StrCat("forming: ", result->cluster().state_detail()));
    }
  });
}

// ---------------------------------------------------------------- the coordinator's word

void Member::Impl::Handle(const v1::CoordinatorMessage& message) {
  switch (message.kind_case()) {
    case v1::CoordinatorMessage::kRefused:
      return OnRefused(StatusFromProto(message.refused().status()));
    case v1::CoordinatorMessage::kForm:
      return OnForm(message.form());
    case v1::CoordinatorMessage::kPeers:
      return OnPeers(message.peers());
    case v1::CoordinatorMessage::kServe:
      return OnServe(message.serve());
    case v1::CoordinatorMessage::kGo:
      return OnGo(message.go());
    case v1::CoordinatorMessage::kStepFailed:
      if (!InEpoch(message.step_failed().epoch())) return;
      return parts_.assembler->FailStep(message.step_failed().step(), message.step_failed().attempt(),
                                        StatusFromProto(message.step_failed().status()));
    case v1::CoordinatorMessage::kResult:
      return OnResult(message.result());
    case v1::CoordinatorMessage::kCheckpointCommitted:
      return parts_.engine->CheckpointCommitted(CheckpointIdFromProto(message.checkpoint_committed().id()));
    case v1::CoordinatorMessage::kDisband:
      return OnDisband(StatusFromProto(message.disband().status()));
    case v1::CoordinatorMessage::kHeartbeat:
    case v1::CoordinatorMessage::KIND_NOT_SET:
      return;
  }
}

void Member::Impl::OnRefused(const absl::Status& status) {
  SetState(absl::StrCat("the coordinator refuses this shard: ", status.message()));
  if (!refused_since_) refused_since_ = Now();
  const absl::Time give_up = *refused_since_ + options_.heartbeat_timeout + 2 * options_.heartbeat_interval;
  if (MayPass(status) && Now() < give_up) {
    register_at_ = Now() + options_.heartbeat_interval;
    return;
  }
  std::lock_guard lock(mutex_);
  result_ = status;
}

void Member::Impl::OnForm(const v1::Form& form) {
  refused_since_.reset();
  EndEpoch(absl::UnavailableError("the group forms anew"));
  plan_ = EpochPlanFromProto(form);
  {
    std::lock_guard lock(mutex_);
    epoch_ = plan_.epoch;
    layout_ = form.layout();
  }
  SetState(absl::StrCat("forming: epoch ", plan_.epoch, ", lineage ", plan_.lineage, ", from ",
                        plan_.checkpoint ? "checkpoint " + plan_.checkpoint->ToString() : "initial weights"));
  parts_.engine->StartEpoch(plan_, [this, epoch = plan_.epoch](std::string blob, absl::Time deadline) {
    return ExchangeBlobs(epoch, std::move(blob), deadline);
  });
}

// On the engine's thread.
absl::StatusOr<std::vector<std::string>> Member::Impl::ExchangeBlobs(uint64_t epoch, std::string blob,
                                                                     absl::Time deadline) {
  std::unique_lock lock(mutex_);
  const auto over = [this, epoch] { return epoch_ != epoch || !stream_; };
  if (!over()) {
    v1::ShardMessage message;
    message.mutable_rendezvous()->set_epoch(epoch);
    message.mutable_rendezvous()->set_blob(std::move(blob));
    peers_.reset();
    stream_->Send(std::move(message));
  }
  const bool heard = WaitFor(changed_, lock, deadline - absl::Now(), [&] { return over() || peers_; });
  if (over()) return absl::UnavailableError("the group has disbanded while it formed");
  if (!heard) return absl::DeadlineExceededError("not all shards have come to the rendezvous");
  return *std::exchange(peers_, std::nullopt);
}

void Member::Impl::OnPeers(const v1::Peers& peers) {
  std::lock_guard lock(mutex_);
  if (epoch_ != peers.epoch()) return;
  peers_.emplace(peers.blobs().begin(), peers.blobs().end());
  changed_.notify_all();
}

void Member::Impl::OnServe(const v1::Serve& serve) {
  if (!InEpoch(serve.epoch())) return;
  parts_.assembler->StartEpoch({plan_.lineage, plan_.step()});
  {
    std::lock_guard lock(mutex_);
    serving_ = true;
  }
  parts_.metrics->SetEpoch(serve.epoch(), true);
  SetState("serving");
}

void Member::Impl::OnGo(const v1::Go& go) {
  if (!InEpoch(go.epoch())) return;
  Engine* const engine = parts_.engine;
  switch (go.what_case()) {
    case v1::Go::kStep:
      return OnStep(go);
    case v1::Go::kRun:
      return OnRun(go);
    case v1::Go::kEvaluate:
      return engine->Enqueue(go.sequence(), EvaluateOperationFromProto(go.evaluate()));
    case v1::Go::kNearest:
      return engine->Enqueue(go.sequence(), NearestOperationFromProto(go.nearest()));
    case v1::Go::kCommitWrite:
      return engine->Enqueue(go.sequence(), CommitWriteOperationFromProto(go.commit_write()));
    case v1::Go::kCheckpoint:
      return engine->Enqueue(go.sequence(), CheckpointOperationFromProto(go.checkpoint()));
    case v1::Go::WHAT_NOT_SET:
      return;
  }
}

void Member::Impl::OnStep(const v1::Go& go) {
  StepOperation operation = StepOperationFromProto(go.step());
  if (const absl::Status chosen = parts_.assembler->ChooseSlices(operation); !chosen.ok()) {
    return SendInEpoch([&chosen](v1::ShardMessage& message, uint64_t epoch) {
      message.mutable_epoch_failed()->set_epoch(epoch);
      *message.mutable_epoch_failed()->mutable_status() = StatusToProto(chosen);
    });
  }
  parts_.engine->Enqueue(go.sequence(), std::move(operation));
}

void Member::Impl::OnRun(const v1::Go& go) {
  parts_.assembler->SetRun(RunStateFromProto(go.run()));
  SendInEpoch([&go](v1::ShardMessage& message, uint64_t epoch) {
    message.mutable_operation_done()->set_epoch(epoch);
    message.mutable_operation_done()->set_sequence(go.sequence());
  });
}

void Member::Impl::OnResult(const v1::Result& result) {
  PendingProposals::Done done;
  {
    std::lock_guard lock(mutex_);
    done = proposals_.Take(result.token());
  }
  if (!done) return;
  const absl::Status status = StatusFromProto(result.status());
  if (status.ok()) {
    done(result);
  } else {
    done(status);
  }
}

void Member::Impl::OnDisband(const absl::Status& why) {
  SetState(absl::StrCat("the group has disbanded: ", why.message()));
  EndEpoch(why);
  {
    std::lock_guard lock(mutex_);
    if (leaving_) {
      result_ = absl::OkStatus();
      return;
    }
  }
  Register();
}

void Member::Impl::EndEpoch(const absl::Status& why) {
  std::vector<PendingProposals::Done> waiting;
  bool was_in_epoch = false;
  {
    std::lock_guard lock(mutex_);
    was_in_epoch = std::exchange(epoch_, 0) != 0;
    serving_ = false;
    layout_.Clear();
    peers_.reset();
    waiting = proposals_.TakeOfEpoch();
    changed_.notify_all();
  }
  FailAll(waiting, why);
  if (!was_in_epoch) return;
  parts_.assembler->EndEpoch(why);
  parts_.engine->EndEpoch(why);
  parts_.staged_writes->Clear();
  parts_.metrics->SetEpoch(0, false);
}

// ---------------------------------------------------------------- from outside

void Member::Impl::Propose(v1::Propose proposal, PendingProposals::Done done) {
  const bool of_epoch = !proposal.has_status() && !proposal.has_list_checkpoints();
  std::string unavailable;
  {
    std::lock_guard lock(mutex_);
    if (stream_ && (serving_ || !of_epoch)) {
      proposal.set_epoch(epoch_);
      proposal.set_token(proposals_.Add(of_epoch, std::move(done)));
      v1::ShardMessage message;
      *message.mutable_propose() = std::move(proposal);
      stream_->Send(std::move(message));
      return;
    }
    unavailable = state_;
  }
  done(WithErrorInfo(absl::UnavailableError(unavailable), {.reason = kNotServing}));
}

absl::Status Member::Impl::Drain(const std::string& reason) {
  struct Outcome {
    std::optional<absl::Status> status;
  };
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  const auto outcome = std::make_shared<Outcome>();
  v1::Propose proposal;
  proposal.mutable_drain()->set_reason(reason);
  Propose(std::move(proposal), [this, outcome](const absl::StatusOr<v1::Result>& result) {
    std::lock_guard lock(mutex_);
    outcome->status = IsDrained(result.status()) ? absl::OkStatus() : result.status();
    changed_.notify_all();
  });
  absl::Status status;
  {
    std::unique_lock lock(mutex_);
    if (!WaitFor(changed_, lock, options_.drain_timeout, [&] { return outcome->status.has_value(); })) {
      outcome->status = absl::DeadlineExceededError(
          absl::StrCat("the group was not drained within ", absl::FormatDuration(options_.drain_timeout)));
    }
    status = *outcome->status;
  }
  Stop();
  return status;
}

void Member::Impl::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

absl::Status Member::Impl::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return finished_; });
  return *result_;
}

// ---------------------------------------------------------------- the public face

Member::Member(MemberOptions options, ControlConnector* connector)
    : impl_(std::make_unique<Impl>(std::move(options), connector)) {}
Member::~Member() { impl_->Stop(); }

void Member::SetParts(const Parts& parts) { impl_->SetParts(parts); }
void Member::Start() { impl_->Start(); }
void Member::Propose(v1::Propose proposal, std::function<void(absl::StatusOr<v1::Result>)> done) {
  impl_->Propose(std::move(proposal), std::move(done));
}
absl::Status Member::Drain(const std::string& reason) { return impl_->Drain(reason); }
void Member::Stop() { impl_->Stop(); }
absl::Status Member::Wait() { return impl_->Wait(); }
v1::Layout Member::layout() const { return impl_->layout(); }
bool Member::serving() const { return impl_->serving(); }
std::string Member::state() const { return impl_->state(); }

void Member::SliceReady(const Slice& slice, int version, int attempt) {
  impl_->SendInEpoch([&](v1::ShardMessage& message, uint64_t epoch) {
    *message.mutable_slice_ready() = SliceReadyToProto(slice, version, attempt, absl::Now());
    message.mutable_slice_ready()->set_epoch(epoch);
  });
}

void Member::WriteStaged(const std::string& write_id, int64_t rows) {
  impl_->SendInEpoch([&](v1::ShardMessage& message, uint64_t epoch) {
    message.mutable_write_staged()->set_epoch(epoch);
    message.mutable_write_staged()->set_write_id(write_id);
    message.mutable_write_staged()->set_rows(rows);
  });
}

void Member::Formed(uint64_t formed_epoch, const absl::Status& status,
                    const std::vector<CommittedWrite>& committed_writes) {
  impl_->SendInEpoch([&](v1::ShardMessage& message, uint64_t epoch) {
    if (formed_epoch != epoch) return;
    if (!status.ok()) {
      message.mutable_epoch_failed()->set_epoch(epoch);
      *message.mutable_epoch_failed()->mutable_status() = StatusToProto(status);
      return;
    }
    message.mutable_formed()->set_epoch(epoch);
    for (const CommittedWrite& write : committed_writes) {
      v1::CommittedWrite* committed = message.mutable_formed()->add_committed_writes();
      committed->set_write_id(write.write_id);
      committed->set_rows(write.rows);
    }
  });
}

void Member::OperationDone(uint64_t sequence, const absl::Status& status, int64_t bytes) {
  impl_->SendInEpoch([&](v1::ShardMessage& message, uint64_t epoch) {
    message.mutable_operation_done()->set_epoch(epoch);
    message.mutable_operation_done()->set_sequence(sequence);
    *message.mutable_operation_done()->mutable_status() = StatusToProto(status);
    message.mutable_operation_done()->set_bytes(bytes);
  });
}

void Member::EpochFailed(const absl::Status& status) {
  impl_->SendInEpoch([&](v1::ShardMessage& message, uint64_t epoch) {
    message.mutable_epoch_failed()->set_epoch(epoch);
    *message.mutable_epoch_failed()->mutable_status() = StatusToProto(status);
  });
}

}  // namespace ccs
