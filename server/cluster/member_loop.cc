#include <spdlog/spdlog.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "server/cluster/member_impl.h"
#include "server/cluster/messages.h"
#include "server/cluster/status_proto.h"
#include "server/engine/change.h"

namespace ccs {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(1);
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

absl::Time Now() {  // monotonic: a wall clock that is set must not look like silence
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// Another process has this rank: perhaps a former life of this one that the coordinator still waits for.
bool MayPass(const absl::Status& refusal) { return refusal.code() == absl::StatusCode::kAlreadyExists; }

}  // namespace

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
  spdlog::info("{}", state);
}

// ---------------------------------------------------------------- registration and heartbeats

void Member::Impl::Register() {
  register_at_.reset();
  v1::ShardMessage message;
  if (const absl::Status status = FillRegistration(message.mutable_register_()); !status.ok()) {
    SetState(absl::StrCat("what is on disk cannot be read: ", status.message()));
    register_at_ = Now() + options_.heartbeat_interval;
    return;
  }
  std::lock_guard lock(mutex_);
  heard_ = Now();  // ending an epoch and reading checkpoints may have taken long
  stream_->Send(std::move(message));
}

// The engine is idle: what memory and disk hold stays as it is told here.
absl::Status Member::Impl::FillRegistration(v1::Register* registration) {
  *registration = options_.registration;
  registration->set_has_served(has_served_);
  if (const std::optional<Position> memory = parts_.engine->memory()) {
    *registration->mutable_memory() = PositionToProto(*memory);
  }
  if (parts_.checkpoints != nullptr) {
    const absl::StatusOr<std::vector<StoredCheckpoint>> checkpoints = parts_.checkpoints->List();
    if (!checkpoints.ok()) return checkpoints.status();
    for (const StoredCheckpoint& checkpoint : *checkpoints) {
      *registration->add_checkpoints() = CheckpointInfoToProto(checkpoint);
    }
  }
  if (parts_.log != nullptr) {
    const absl::StatusOr<std::vector<LoggedLineage>> lineages = parts_.log->List();
    if (!lineages.ok()) return lineages.status();
    for (const LoggedLineage& lineage : *lineages) {
      const absl::StatusOr<Origin> origin = DecodeOrigin(lineage.begin);
      if (!origin.ok()) return origin.status();
      *registration->add_logs() = LoggedLineageToProto(lineage, *origin);
    }
  }
  return absl::OkStatus();
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

}  // namespace ccs
