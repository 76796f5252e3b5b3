// A coordinator with scripted shards: messages in, messages out, time by hand.
#ifndef CCS_TESTS_SERVER_CLUSTER_COORDINATOR_FIXTURE_H_
#define CCS_TESTS_SERVER_CLUSTER_COORDINATOR_FIXTURE_H_

#include <ccs/v1/cluster.pb.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "server/cluster/coordinator.h"
#include "server/cluster/messages.h"
#include "server/cluster/status_proto.h"
#include "server/engine/layout.h"

namespace ccs {

class ScriptedCluster {
 public:
  using Kind = v1::CoordinatorMessage::KindCase;

  static v1::ModelSpec Spec() {
    v1::ModelSpec spec;
    spec.set_num_classes(10);
    spec.set_dim(4);
    spec.set_max_batch(16);
    return spec;
  }
  static CoordinatorOptions Options(int num_shards) {
    CoordinatorOptions options;
    options.num_shards = num_shards;
    options.spec = Spec();
    options.version = "1.0";
    options.has_checkpoint_dir = true;
    return options;
  }

  explicit ScriptedCluster(const CoordinatorOptions& options)
      : options_(options), now_(absl::Now()), coordinator_(options) {
    for (int rank = 0; rank < options.num_shards; ++rank) Connect(rank);
    Tick(absl::ZeroDuration());
  }
  explicit ScriptedCluster(int num_shards) : ScriptedCluster(Options(num_shards)) {}

  // ---------------------------------------------------------------- one shard's messages

  v1::Register Registration(int rank) const {
    v1::Register registration;
    registration.set_rank(rank);
    registration.set_num_shards(options_.num_shards);
    registration.set_address("host" + std::to_string(rank) + ":8001");
    registration.set_process_nonce(100 + rank);
    *registration.mutable_spec() = Spec();
    registration.set_version("1.0");
    registration.set_step_log(options_.step_log);
    for (const CheckpointId& id : disk_[rank]) {
      v1::CheckpointInfo* info = registration.add_checkpoints();
      *info->mutable_id() = CheckpointIdToProto(id);
      info->set_bytes(10);
    }
    if (memory_) *registration.mutable_memory() = PositionToProto(*memory_);
    return registration;
  }
  // Stream `slot` is used for rank `slot`, and further ones for intruders.
  void Connect(int slot) {
    connections_[slot] = coordinator_.Connect(
        [this, slot](const v1::CoordinatorMessage& message) { inbox_[slot].push_back(message); });
  }
  void Disconnect(int slot) {
    coordinator_.Disconnect(connections_[slot], absl::UnavailableError("reset by peer"));
  }
  void Send(int slot, const v1::ShardMessage& message) { coordinator_.Receive(connections_[slot], message); }
  void Register(int slot, const v1::Register& registration) {
    v1::ShardMessage message;
    *message.mutable_register_() = registration;
    Send(slot, message);
  }
  void Register(int rank) { Register(rank, Registration(rank)); }
  void RegisterAll() {
    for (int rank = 0; rank < options_.num_shards; ++rank) Register(rank);
  }
  void Formed(int rank, std::vector<std::pair<std::string, int64_t>> writes = {}) {
    v1::ShardMessage message;
    message.mutable_formed()->set_epoch(epoch_);
    message.mutable_formed()->mutable_position()->set_lineage(lineage_);
    message.mutable_formed()->mutable_position()->set_step(step_);
    if (memory_) {
      *message.mutable_formed()->mutable_position() = PositionToProto(*memory_);
      *message.mutable_formed()->mutable_run() = RunStateToProto({"kept", {1}});
    }
    for (const auto& [id, rows] : writes) {
      v1::CommittedWrite* write = message.mutable_formed()->add_committed_writes();
      write->set_write_id(id);
      write->set_rows(rows);
    }
    Send(rank, message);
  }
  void Heartbeat(int rank, const std::string& activity = "idle", uint64_t progress = 0, double loss = 0) {
    v1::ShardMessage message;
    message.mutable_heartbeat()->set_activity(activity);
    message.mutable_heartbeat()->set_progress(progress);
    message.mutable_heartbeat()->set_loss(loss);
    Send(rank, message);
  }
  void EpochFailed(int rank, const absl::Status& status) {
    v1::ShardMessage message;
    message.mutable_epoch_failed()->set_epoch(epoch_);
    *message.mutable_epoch_failed()->mutable_status() = StatusToProto(status);
    Send(rank, message);
  }
  void Done(int rank, uint64_t sequence, const absl::Status& status = absl::OkStatus(), int64_t bytes = 10) {
    v1::ShardMessage message;
    message.mutable_operation_done()->set_epoch(epoch_);
    message.mutable_operation_done()->set_sequence(sequence);
    *message.mutable_operation_done()->mutable_status() = StatusToProto(status);
    message.mutable_operation_done()->set_bytes(bytes);
    Send(rank, message);
  }
  void DoneEverywhere(uint64_t sequence) {
    for (int rank = 0; rank < options_.num_shards; ++rank) Done(rank, sequence);
  }
  void Staged(int rank, const std::string& id, int64_t rows) {
    v1::ShardMessage message;
    message.mutable_write_staged()->set_epoch(epoch_);
    message.mutable_write_staged()->set_write_id(id);
    message.mutable_write_staged()->set_rows(rows);
    Send(rank, message);
  }
  // Returns the token.
  uint64_t Propose(int rank, v1::Propose proposal) {
    proposal.set_epoch(epoch_);
    proposal.set_token(++token_);
    v1::ShardMessage message;
    *message.mutable_propose() = std::move(proposal);
    Send(rank, message);
    return token_;
  }

  // ---------------------------------------------------------------- what came back

  // The next message of a kind to a slot; messages before it are dropped.
  std::optional<v1::CoordinatorMessage> Next(int slot, Kind kind) {
    auto& inbox = inbox_[slot];
    const auto found = std::find_if(inbox.begin(), inbox.end(),
                                    [kind](const auto& message) { return message.kind_case() == kind; });
    if (found == inbox.end()) return std::nullopt;
    v1::CoordinatorMessage message = *found;
    inbox.erase(inbox.begin(), std::next(found));
    return message;
  }
  bool Has(int slot, Kind kind) const {
    const auto inbox = inbox_.find(slot);
    return inbox != inbox_.end() && std::any_of(inbox->second.begin(), inbox->second.end(),
                                                [kind](const auto& m) { return m.kind_case() == kind; });
  }
  std::optional<v1::Go> NextGo(int rank) {
    const auto message = Next(rank, Kind::kGo);
    return message ? std::optional(message->go()) : std::nullopt;
  }
  absl::Status Refusal(int slot) {
    const auto message = Next(slot, Kind::kRefused);
    return message ? StatusFromProto(message->refused().status()) : absl::OkStatus();
  }
  absl::Status Disbanded(int rank) {
    const auto message = Next(rank, Kind::kDisband);
    return message ? StatusFromProto(message->disband().status()) : absl::OkStatus();
  }
  absl::Status StepFailure(int rank) {
    const auto message = Next(rank, Kind::kStepFailed);
    return message ? StatusFromProto(message->step_failed().status()) : absl::OkStatus();
  }
  std::optional<v1::Result> NextResult(int rank) {
    const auto message = Next(rank, Kind::kResult);
    return message ? std::optional(message->result()) : std::nullopt;
  }
  // Of a proposal that is answered at once.
  absl::Status Outcome(int rank) {
    const auto result = NextResult(rank);
    return result ? StatusFromProto(result->status()) : absl::CancelledError("no result");
  }
  v1::StatusReply Status(int slot = 0) {
    v1::Propose proposal;
    proposal.mutable_status();
    const uint64_t token = Propose(slot, proposal);
    auto result = NextResult(slot);
    while (result->token() != token) result = NextResult(slot);
    return result->cluster();
  }

  // ---------------------------------------------------------------- whole scenes

  // From all registered to serving. Returns the Form that rank 0 got.
  std::optional<v1::Form> FinishForming(std::vector<std::pair<std::string, int64_t>> writes = {}) {
    const auto form = Next(0, Kind::kForm);
    if (!form) return std::nullopt;
    epoch_ = form->form().epoch();
    lineage_ = form->form().lineage();
    step_ = form->form().origin().checkpoint().step();
    for (int rank = 0; rank < options_.num_shards; ++rank) Formed(rank, writes);
    return form->form();
  }
  std::optional<v1::Form> Serve(std::vector<std::pair<std::string, int64_t>> writes = {}) {
    RegisterAll();
    return FinishForming(std::move(writes));
  }
  static v1::Propose OpenRunProposal(const std::string& run, int trainer, int num_trainers, uint64_t nonce) {
    v1::Propose proposal;
    proposal.mutable_open_run()->set_run_id(run);
    proposal.mutable_open_run()->set_trainer_rank(trainer);
    proposal.mutable_open_run()->set_num_trainers(num_trainers);
    proposal.mutable_open_run()->set_start_nonce(nonce);
    return proposal;
  }
  // Every trainer of run "run" opens it; the incarnation of trainer i is 1000 + i.
  void OpenRun(int num_trainers) {
    num_trainers_ = num_trainers;
    for (int trainer = 0; trainer < num_trainers; ++trainer) {
      Propose(0, OpenRunProposal("run", trainer, num_trainers, 1000 + trainer));
      FinishOperation();
      NextResult(0);
    }
  }
  // All ranks get the next Go and finish it. Returns it as rank 0 saw it.
  std::optional<v1::Go> FinishOperation() {
    std::optional<v1::Go> first;
    for (int rank = 0; rank < options_.num_shards; ++rank) {
      const auto go = NextGo(rank);
      if (!go) return std::nullopt;
      if (rank == 0) first = go;
    }
    DoneEverywhere(first->sequence());
    return first;
  }
  v1::SliceReady Slice(int trainer, int64_t step) const {
    v1::SliceReady slice;
    slice.set_epoch(epoch_);
    slice.set_run_id("run");
    slice.set_step(step);
    slice.set_trainer_rank(trainer);
    slice.set_version(1);
    slice.set_rows(2);
    slice.mutable_params()->set_learning_rate(0.5f);
    slice.set_wait_ms(10'000);
    slice.set_attempt(1);
    slice.set_incarnation(1000 + trainer);
    return slice;
  }
  void Ready(int rank, const v1::SliceReady& slice) {
    v1::ShardMessage message;
    *message.mutable_slice_ready() = slice;
    Send(rank, message);
  }
  // To every shard where the trainer is at home.
  void ReadyAtHome(const v1::SliceReady& slice) {
    for (int rank = 0; rank < options_.num_shards; ++rank) {
      if (IsHome(rank, options_.num_shards, slice.trainer_rank(), num_trainers_)) Ready(rank, slice);
    }
  }
  // All trainers' slices of a step, and the Go at rank 0.
  std::optional<v1::Go> Step(int64_t step, bool checkpoint = false) {
    for (int trainer = 0; trainer < num_trainers_; ++trainer) {
      v1::SliceReady slice = Slice(trainer, step);
      slice.mutable_params()->set_checkpoint(checkpoint);
      ReadyAtHome(slice);
    }
    return NextGo(0);
  }

  void Tick(absl::Duration later) { coordinator_.Tick(now_ += later); }
  // Every shard is heard in between.
  void TickAlive(absl::Duration later) {
    for (int rank = 0; rank < options_.num_shards; ++rank) Heartbeat(rank);
    Tick(later);
  }
  // What `rank` holds when it registers.
  void SetDisk(int rank, std::vector<CheckpointId> ids) { disk_[rank] = std::move(ids); }
  void SetDisks(const std::vector<CheckpointId>& ids) {
    for (int rank = 0; rank < options_.num_shards; ++rank) SetDisk(rank, ids);
  }

  // What every rank has in memory when it registers, and is formed with.
  void SetMemory(const Position& position) { memory_ = position; }

  uint64_t epoch() const { return epoch_; }
  uint64_t lineage() const { return lineage_; }

 private:
  const CoordinatorOptions options_;
  absl::Time now_;
  Coordinator coordinator_;
  std::map<int, Coordinator::ConnectionId> connections_;
  std::map<int, std::deque<v1::CoordinatorMessage>> inbox_;
  mutable std::map<int, std::vector<CheckpointId>> disk_;
  uint64_t epoch_ = 0;
  uint64_t lineage_ = 0;
  int64_t step_ = 0;
  std::optional<Position> memory_;
  uint64_t token_ = 0;
  int num_trainers_ = 0;
};

}  // namespace ccs

#endif  // CCS_TESTS_SERVER_CLUSTER_COORDINATOR_FIXTURE_H_
