#include "absl/strings/str_cat.h"
#include "server/cluster/member_impl.h"
#include "server/cluster/messages.h"
#include "server/cluster/status_proto.h"
#include "server/fault_point.h"

namespace ccs {

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
                        plan_.from_memory ? "memory" : plan_.origin.ToString()));
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
  has_served_ = true;
  // Nothing has been ordered yet, so the engine still stands where it arrived.
  parts_.assembler->StartEpoch(parts_.engine->memory().value_or(Position{}));
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
      return engine->Enqueue(go.sequence(), RunOperation{RunStateFromProto(go.run())});
    case v1::Go::kEvaluate:
      return engine->Enqueue(go.sequence(), EvaluateOperationFromProto(go.evaluate()));
    case v1::Go::kNearest:
      return engine->Enqueue(go.sequence(), NearestOperationFromProto(go.nearest()));
    case v1::Go::kCommitWrite:
      return engine->Enqueue(go.sequence(), CommitWriteOperationFromProto(go.commit_write()));
    case v1::Go::kCheckpoint:
      return engine->Enqueue(go.sequence(), CheckpointOperationFromProto(go.checkpoint()));
    case v1::Go::kRelease:
      return engine->Enqueue(go.sequence(), ReleaseOperation{CheckpointIdFromProto(go.release().id())});
    case v1::Go::WHAT_NOT_SET:
      return;
  }
}

void Member::Impl::OnStep(const v1::Go& go) {
  ReachFaultPoint("step/after_go");
  StepOperation operation = StepOperationFromProto(go.step());
  if (const absl::Status chosen = parts_.assembler->ChooseSlices(operation); !chosen.ok()) {
    return SendInEpoch([&chosen](v1::ShardMessage& message, uint64_t epoch) {
      message.mutable_epoch_failed()->set_epoch(epoch);
      *message.mutable_epoch_failed()->mutable_status() = StatusToProto(chosen);
    });
  }
  parts_.engine->Enqueue(go.sequence(), std::move(operation));
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
  // The engine first: a step that it completes meanwhile still gets its replies into the assembler.
  parts_.engine->EndEpoch(why);
  parts_.assembler->EndEpoch(why);
  parts_.staged_writes->Clear();
  parts_.metrics->SetEpoch(0, false);
}

}  // namespace ccs
