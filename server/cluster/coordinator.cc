#include "server/cluster/coordinator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/checkpoint_catalogue.h"
#include "server/cluster/formation.h"
#include "server/cluster/history.h"
#include "server/cluster/membership.h"
#include "server/cluster/messages.h"
#include "server/cluster/operation_order.h"
#include "server/cluster/recovery.h"
#include "server/cluster/status_proto.h"
#include "server/cluster/window.h"
#include "server/model_spec_proto.h"

namespace ccs {
namespace {

// Between groups that break apart before they serve.
constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Seconds(30);

}  // namespace

class Coordinator::Impl {
 public:
  explicit Impl(CoordinatorOptions options);

  ConnectionId Connect(Send send);
  void Receive(ConnectionId id, const v1::ShardMessage& message);
  void Disconnect(ConnectionId id, const absl::Status& why);
  void Tick(absl::Time now);

 private:
  // From Form to Serve.
  struct Forming {
    Recovery recovery;
    std::vector<std::optional<std::string>> blobs;
    std::vector<std::optional<FormedState>> formed;
  };

  void Dispatch(ConnectionId id, const v1::ShardMessage& message);
  void OnRegister(ConnectionId id, const v1::Register& registration);
  void OnRendezvous(int rank, const v1::Rendezvous& rendezvous);
  void OnFormed(int rank, const v1::Formed& formed);
  void OnPropose(ConnectionId id, const v1::Propose& proposal);
  void OnHeartbeat(ConnectionId id, const v1::ShardHeartbeat& heartbeat);
  void OnEpochFailed(int rank, const v1::EpochFailed& failed);

  void TryForm();
  absl::StatusOr<Recovery> Plan() const;
  void Form(const Recovery& recovery);
  void Serve();
  void Disband(const absl::Status& why);
  // Sends `message` to every registered shard, which has to register again.
  void ReleaseAll(const v1::CoordinatorMessage& message);
  void RefuseAll(const absl::Status& status);
  void Refuse(ConnectionId id, const absl::Status& status);
  // A registered shard is gone.
  void Lose(int rank, const std::string& how);
  void CheckLiveness();

  bool in_epoch() const { return forming_ || order_; }
  std::string Detail() const;
  v1::StatusReply MakeStatus() const;
  v1::ListCheckpointsReply MakeList() const;

  const CoordinatorOptions options_;
  absl::StatusOr<ModelSpec> spec_;
  std::mutex mutex_;
  absl::Time now_;
  Membership members_;
  CheckpointCatalogue catalogue_;

  uint64_t epoch_ = 0;
  Position position_;  // of the epoch that serves or served last; lineage 0: none has
  uint64_t last_lineage_ = 0;
  Origin origin_;                       // of the lineage, if it began in this process's time
  int64_t begin_step_ = 0;              // where it began
  std::optional<int64_t> resume_step_;  // a trainer has asked for it
  std::optional<std::pair<int64_t, absl::Status>> out_of_reach_;  // the last one that could not be had
  std::optional<Forming> forming_;
  std::unique_ptr<OperationOrder> order_;  // while serving
  absl::Duration pause_ = absl::ZeroDuration();
  absl::Time not_before_ = absl::InfinitePast();  // of the next Form
  std::string last_failure_;
};

Coordinator::Impl::Impl(CoordinatorOptions options)
    : options_(std::move(options)),
      spec_(ModelSpecFromProto(options_.spec)),
      now_(absl::Now()),
      members_(options_.num_shards),
      catalogue_(options_.num_shards, options_.keep_checkpoints) {}

// ---------------------------------------------------------------- connections

Coordinator::ConnectionId Coordinator::Impl::Connect(Send send) {
  std::lock_guard lock(mutex_);
  return members_.Connect(std::move(send), now_);
}

void Coordinator::Impl::Disconnect(ConnectionId id, const absl::Status& why) {
  std::lock_guard lock(mutex_);
  if (const auto rank = members_.RankOf(id)) {
    Lose(*rank, absl::StrCat("left: ", why.ok() ? "its stream has ended" : why.message()));
  }
  members_.Disconnect(id);
}

void Coordinator::Impl::Lose(int rank, const std::string& how) {
  const std::string text = absl::StrCat("rank ", rank, " ", how);
  if (in_epoch()) {
    Disband(absl::UnavailableError(text));
    return;
  }
  spdlog::warn("{}", text);
  v1::CoordinatorMessage message;
  *message.mutable_disband()->mutable_status() = StatusToProto(absl::UnavailableError(text));
  members_.SendToRank(rank, message);
  members_.Release(rank);
}

// ---------------------------------------------------------------- messages

void Coordinator::Impl::Receive(ConnectionId id, const v1::ShardMessage& message) {
  std::lock_guard lock(mutex_);
  if (!members_.Heard(id, now_)) return;
  Dispatch(id, message);
  if (order_ && order_->over()) Disband(absl::Status(*order_->over()));
}

void Coordinator::Impl::Dispatch(ConnectionId id, const v1::ShardMessage& message) {
  if (message.has_register_()) return OnRegister(id, message.register_());
  if (message.has_heartbeat()) return OnHeartbeat(id, message.heartbeat());
  if (message.has_propose()) return OnPropose(id, message.propose());
  const std::optional<int> rank = members_.RankOf(id);
  if (!rank) return;
  switch (message.kind_case()) {
    case v1::ShardMessage::kRendezvous:
      if (forming_ && message.rendezvous().epoch() == epoch_) OnRendezvous(*rank, message.rendezvous());
      break;
    case v1::ShardMessage::kFormed:
      if (forming_ && message.formed().epoch() == epoch_) OnFormed(*rank, message.formed());
      break;
    case v1::ShardMessage::kSliceReady:
      if (order_ && message.slice_ready().epoch() == epoch_)
        order_->SliceReady(*rank, message.slice_ready(), now_);
      break;
    case v1::ShardMessage::kWriteStaged:
      if (order_ && message.write_staged().epoch() == epoch_)
        order_->WriteStaged(*rank, message.write_staged(), now_);
      break;
    case v1::ShardMessage::kOperationDone:
      if (order_ && message.operation_done().epoch() == epoch_)
        order_->OperationDone(*rank, message.operation_done());
      break;
    case v1::ShardMessage::kEpochFailed:
      if (in_epoch() && message.epoch_failed().epoch() == epoch_)
        OnEpochFailed(*rank, message.epoch_failed());
      break;
    default:
      break;  // a newer peer's message; versions are compared at registration
  }
}

void Coordinator::Impl::OnRegister(ConnectionId id, const v1::Register& registration) {
  if (const absl::Status status = CheckRegistration(options_, registration); !status.ok()) {
    return Refuse(id, status);
  }
  if (const std::optional<int> rank = members_.RankOf(id)) {
    // Out of turn. The word that the epoch is over makes it register once more.
    if (in_epoch()) return Disband(absl::UnavailableError(absl::StrCat("rank ", *rank, " registers anew")));
    members_.Release(*rank);
  }
  const int rank = registration.rank();
  if (const v1::Register* other = members_.Find(rank)) {
    if (other->process_nonce() != registration.process_nonce()) {
      return Refuse(
          id, absl::AlreadyExistsError(absl::StrCat("rank ", rank, " is taken by ", other->address(), ", ",
                                                    registration.address(), " wants it too")));
    }
    Lose(rank, "has come back on a new stream");
  }
  members_.Register(id, registration, now_);
  catalogue_.SetRank(rank, registration.checkpoints());
  spdlog::info("rank {} at {} has registered with {} checkpoints", rank, registration.address(),
               registration.checkpoints_size());
  TryForm();
}

void Coordinator::Impl::OnHeartbeat(ConnectionId id, const v1::ShardHeartbeat& heartbeat) {
  members_.Heartbeat(id, heartbeat, now_);
  v1::CoordinatorMessage reply;
  reply.mutable_heartbeat();
  members_.SendTo(id, reply);
}

void Coordinator::Impl::OnPropose(ConnectionId id, const v1::Propose& proposal) {
  const std::optional<int> rank = members_.RankOf(id);
  v1::CoordinatorMessage message;
  v1::Result* result = message.mutable_result();
  result->set_token(proposal.token());
  if (proposal.has_status()) {
    *result->mutable_cluster() = MakeStatus();
  } else if (proposal.has_list_checkpoints()) {
    *result->mutable_checkpoints() = MakeList();
  } else if (rank && order_ && proposal.epoch() == epoch_) {
    return order_->Propose(*rank, proposal, now_);
  } else {
    *result->mutable_status() = StatusToProto(absl::UnavailableError(absl::StrCat("forming: ", Detail())));
  }
  members_.SendTo(id, message);
}

// ---------------------------------------------------------------- epochs

void Coordinator::Impl::TryForm() {
  if (in_epoch() || !members_.MissingRanks().empty() || now_ < not_before_) return;
  absl::StatusOr<Recovery> recovery = Plan();
  if (!recovery.ok() && resume_step_) {
    // The trainer is told; the cluster goes on where it was.
    spdlog::warn("{}", std::string(recovery.status().message()));
    out_of_reach_.emplace(*std::exchange(resume_step_, std::nullopt), recovery.status());
    recovery = Plan();
  }
  if (!recovery.ok()) return RefuseAll(recovery.status());
  Form(*recovery);
}

absl::StatusOr<Recovery> Coordinator::Impl::Plan() const {
  return PlanRecovery({.policy = options_.resume,
                       .resume_step = resume_step_,
                       .known = position_,
                       .last_lineage = last_lineage_,
                       .began_from = origin_.checkpoint,
                       .ranks = members_.Registrations(),
                       .checkpoints = &catalogue_});
}

void Coordinator::Impl::Form(const Recovery& recovery) {
  ++epoch_;
  spdlog::info("epoch {}: lineage {} {} at step {}, from {}", epoch_, recovery.lineage,
               recovery.begins_lineage ? "begins" : "goes on", recovery.step, recovery.Source());
  if (!recovery.lost.empty()) spdlog::error("lineage {}: {}", recovery.lineage, recovery.lost);
  last_lineage_ = std::max(last_lineage_, recovery.lineage);
  forming_.emplace();
  forming_->recovery = recovery;
  forming_->blobs.resize(options_.num_shards);
  forming_->formed.resize(options_.num_shards);

  v1::CoordinatorMessage message;
  v1::Form* form = message.mutable_form();
  form->set_epoch(epoch_);
  form->set_lineage(recovery.lineage);
  form->set_from_memory(recovery.from_memory);
  form->set_begins_lineage(recovery.begins_lineage);
  *form->mutable_origin() = OriginToProto(recovery.origin);
  *form->mutable_layout() = members_.MakeLayout(options_.spec.num_classes());
  members_.SendToAll(message);
}

void Coordinator::Impl::OnRendezvous(int rank, const v1::Rendezvous& rendezvous) {
  auto& blobs = forming_->blobs;
  blobs[rank] = rendezvous.blob();
  if (!std::all_of(blobs.begin(), blobs.end(), [](const auto& blob) { return blob.has_value(); })) return;
  v1::CoordinatorMessage message;
  message.mutable_peers()->set_epoch(epoch_);
  for (auto& blob : blobs) {
    message.mutable_peers()->add_blobs(*blob);
    blob.reset();  // a second exchange begins with nothing
  }
  members_.SendToAll(message);
}

void Coordinator::Impl::OnFormed(int rank, const v1::Formed& formed) {
  forming_->formed[rank] = FormedStateFromProto(formed);
  for (const auto& state : forming_->formed) {
    if (!state) return;
    if (*state != *forming_->formed[0]) {
      return Disband(absl::InternalError(
          absl::StrCat("the ranks have come to different states: step ", state->position.step, ", record ",
                       state->position.index, " and step ", forming_->formed[0]->position.step, ", record ",
                       forming_->formed[0]->position.index)));
    }
  }
  Serve();
}

void Coordinator::Impl::Serve() {
  FormedState state = *std::move(forming_->formed[0]);
  position_ = state.position;
  if (forming_->recovery.begins_lineage) {
    origin_ = forming_->recovery.origin;
    begin_step_ = position_.step;
  }
  order_ = std::make_unique<OperationOrder>(
      options_, spec_->max_batch,
      OperationOrder::Start{epoch_, std::move(state), std::exchange(out_of_reach_, std::nullopt)},
      &catalogue_,
      [this](int rank, const v1::CoordinatorMessage& message) { members_.SendToRank(rank, message); });
  forming_.reset();
  resume_step_.reset();
  pause_ = absl::ZeroDuration();
  spdlog::info("epoch {}: {} shards serve lineage {} from step {}", epoch_, options_.num_shards,
               position_.lineage, position_.step);
  v1::CoordinatorMessage message;
  message.mutable_serve()->set_epoch(epoch_);
  members_.SendToAll(message);
}

void Coordinator::Impl::OnEpochFailed(int rank, const v1::EpochFailed& failed) {
  const absl::Status said = StatusFromProto(failed.status());
  const std::string text = absl::StrCat("rank ", rank, ": ", said.message());
  // A state that does not fit (another spec's checkpoint, say) will not fit the next time either.
  if (forming_ && said.code() == absl::StatusCode::kFailedPrecondition) {
    return RefuseAll(absl::FailedPreconditionError(text));
  }
  Disband(absl::UnavailableError(text));
}

void Coordinator::Impl::Disband(const absl::Status& why) {
  spdlog::warn("epoch {} is over: {}", epoch_, std::string(why.message()));
  last_failure_ = std::string(why.message());
  if (order_) {
    position_ = order_->position();
    resume_step_ = order_->resume_step();
  } else {
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
    not_before_ = now_ + pause_;
  }
  v1::CoordinatorMessage message;
  *message.mutable_disband()->mutable_status() = StatusToProto(why);
  ReleaseAll(message);
}

void Coordinator::Impl::ReleaseAll(const v1::CoordinatorMessage& message) {
  members_.SendToAll(message);
  forming_.reset();
  order_.reset();
  for (int rank = 0; rank < options_.num_shards; ++rank) members_.Release(rank);
}

void Coordinator::Impl::RefuseAll(const absl::Status& status) {
  spdlog::error("this group cannot form: {}", std::string(status.message()));
  v1::CoordinatorMessage message;
  *message.mutable_refused()->mutable_status() = StatusToProto(status);
  ReleaseAll(message);
}

void Coordinator::Impl::Refuse(ConnectionId id, const absl::Status& status) {
  spdlog::warn("a shard is refused: {}", std::string(status.message()));
  v1::CoordinatorMessage message;
  *message.mutable_refused()->mutable_status() = StatusToProto(status);
  members_.SendTo(id, message);
}

// ---------------------------------------------------------------- time

void Coordinator::Impl::Tick(absl::Time now) {
  std::lock_guard lock(mutex_);
  now_ = now;
  CheckLiveness();
  if (order_) order_->Tick(now_);
  if (order_ && order_->over()) Disband(absl::Status(*order_->over()));
  TryForm();
}

void Coordinator::Impl::CheckLiveness() {
  const absl::Duration stall = in_epoch() ? options_.stall_timeout : absl::InfiniteDuration();
  for (int rank = 0; rank < options_.num_shards; ++rank) {
    if (const auto why = members_.WhyLost(rank, now_, options_.heartbeat_timeout, stall)) Lose(rank, *why);
  }
}

// ---------------------------------------------------------------- status

std::string Coordinator::Impl::Detail() const {
  if (order_) return order_->Describe();
  if (forming_) {
    std::vector<int> restoring;
    for (int rank = 0; rank < options_.num_shards; ++rank) {
      if (!forming_->formed[rank]) restoring.push_back(rank);
    }
    return absl::StrCat("ranks ", absl::StrJoin(restoring, ", "), " start from ",
                        forming_->recovery.Source());
  }
  const std::vector<int> missing = members_.MissingRanks();
  if (!missing.empty()) return absl::StrCat("waiting for ranks ", absl::StrJoin(missing, ", "));
  return absl::StrCat("another try soon, after: ", last_failure_);
}

v1::StatusReply Coordinator::Impl::MakeStatus() const {
  v1::StatusReply reply;
  reply.set_state(!order_ ? v1::FORMING : order_->draining() ? v1::DRAINING : v1::SERVING);
  reply.set_state_detail(Detail());
  reply.set_epoch(epoch_);
  const Position position = order_ ? order_->position() : position_;
  reply.mutable_position()->set_lineage(position.lineage);
  reply.mutable_position()->set_step(position.step);
  *reply.mutable_spec() = options_.spec;
  reply.set_version(options_.version);
  members_.FillStatus(options_.spec.num_classes(), now_, &reply);
  if (order_ && !order_->run().run_id.empty()) {
    const RunState& run = order_->run();
    reply.mutable_run()->set_run_id(run.run_id);
    reply.mutable_run()->set_num_trainers(run.num_trainers());
    for (int trainer = 0; trainer < run.num_trainers(); ++trainer) {
      if (run.incarnations[trainer] != 0) reply.mutable_run()->add_open_trainers(trainer);
    }
  }
  const std::vector<v1::CheckpointInfo> common = catalogue_.Common();
  if (!common.empty()) *reply.mutable_last_checkpoint() = common.back();
  return reply;
}

v1::ListCheckpointsReply Coordinator::Impl::MakeList() const {
  v1::ListCheckpointsReply reply;
  for (v1::CheckpointInfo& info : catalogue_.Common()) *reply.add_checkpoints() = std::move(info);
  if (!members_.MissingRanks().empty()) return reply;
  std::vector<const v1::Register*> ranks = members_.Registrations();
  std::vector<v1::Register> now;
  if (order_) {
    now = WithLogsOfNow(ranks, {origin_, begin_step_, order_->position(), catalogue_.log_cut()});
    std::transform(now.begin(), now.end(), ranks.begin(), [](const v1::Register& rank) { return &rank; });
  }
  const History history(ranks, catalogue_);
  const uint64_t lineage = position_.lineage != 0 ? position_.lineage : history.newest_lineage();
  for (const StepRange& steps : StepsOf(FindWindow(history, lineage, origin_.checkpoint))) {
    v1::StepRange* range = reply.add_window();
    range->set_first(steps.first);
    range->set_last(steps.last);
  }
  return reply;
}

// ---------------------------------------------------------------- the public face

Coordinator::Coordinator(CoordinatorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Coordinator::~Coordinator() = default;

Coordinator::ConnectionId Coordinator::Connect(Send send) { return impl_->Connect(std::move(send)); }
void Coordinator::Receive(ConnectionId connection, const v1::ShardMessage& message) {
  impl_->Receive(connection, message);
}
void Coordinator::Disconnect(ConnectionId connection, const absl::Status& why) {
  impl_->Disconnect(connection, why);
}
void Coordinator::Tick(absl::Time now) { impl_->Tick(now); }

}  // namespace ccs
