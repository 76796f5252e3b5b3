#include "server/cluster/member.h"

#include "absl/strings/str_cat.h"
#include "server/cluster/member_impl.h"
#include "server/cluster/messages.h"
#include "server/cluster/status_proto.h"
#include "server/engine/error_info.h"

namespace ccs {
namespace {

constexpr char kNotServing[] = "not_serving";

// Nothing is left to drain: another rank has had it done, or the group is not together.
bool IsDrained(const absl::Status& status) {
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  return info && (info->reason == "draining" || info->reason == kNotServing);
}

}  // namespace

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

void Member::Formed(uint64_t formed_epoch, const absl::StatusOr<FormedState>& state) {
  impl_->SendInEpoch([&](v1::ShardMessage& message, uint64_t epoch) {
    if (formed_epoch != epoch) return;
    if (!state.ok()) {
      message.mutable_epoch_failed()->set_epoch(epoch);
      *message.mutable_epoch_failed()->mutable_status() = StatusToProto(state.status());
      return;
    }
    *message.mutable_formed() = FormedStateToProto(*state);
    message.mutable_formed()->set_epoch(epoch);
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
