#include "tests/server/simulation/shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cluster/messages.h"
#include "server/cluster/status_proto.h"
#include "tests/server/simulation/cluster.h"

namespace ccs::simulation {
namespace {

constexpr absl::Duration kHeartbeat = absl::Seconds(1);

}  // namespace

Shard::Shard(World* world, Cluster* cluster, Model* model, Disk* disk, int rank, int num_shards, int keep)
    : world_(world),
      cluster_(cluster),
      model_(model),
      disk_(disk),
      rank_(rank),
      num_shards_(num_shards),
      keep_(keep),
      process_nonce_(world->Bits()),
      assembler_(rank, num_shards, this) {}

void Shard::Then(absl::Duration delay, bool in_epoch, std::function<void()> what) {
  world_->After(delay,
                [self = weak_from_this(), this, in_epoch, generation = generation_, what = std::move(what)] {
                  const auto alive = self.lock();
                  if (!alive || (in_epoch && generation != generation_)) return;
                  if (world_->now() < stopped_until_)
                    return Then(stopped_until_ - world_->now(), in_epoch, what);
                  what();
                });
}

// ---------------------------------------------------------------- the stream

void Shard::Start() {
  Connect();
  Beat();
}

void Shard::Connect() {
  if (stream_ != 0) return;
  stream_ = cluster_->Connect(rank_);
  if (stream_ == 0) return Then(absl::Milliseconds(200), /*in_epoch=*/false, [this] { Connect(); });
  Register();
}

void Shard::StreamLost(uint64_t stream) {
  if (stream != stream_) return;
  stream_ = 0;
  EndEpoch(absl::UnavailableError("the coordinator is gone"));
  for (auto& [token, done] : std::exchange(proposals_, {}))
    done(absl::UnavailableError("the stream has ended"));
  Then(absl::Milliseconds(200), /*in_epoch=*/false, [this] { Connect(); });
}

void Shard::Send(const v1::ShardMessage& message) {
  if (stream_ != 0) cluster_->ToCoordinator(stream_, message);
}

void Shard::Beat() {
  v1::ShardMessage message;
  message.mutable_heartbeat()->set_activity(busy_ ? "busy" : "idle");
  message.mutable_heartbeat()->set_progress(++heartbeats_);
  Send(message);
  Then(kHeartbeat, /*in_epoch=*/false, [this] { Beat(); });
}

void Shard::Register() {
  v1::ShardMessage message;
  v1::Register* registration = message.mutable_register_();
  *registration = cluster_->Registration(rank_);
  registration->set_process_nonce(process_nonce_);
  registration->set_has_served(has_served_);
  if (memory_) *registration->mutable_memory() = PositionToProto(*memory_);
  for (const auto& [id, checkpoint] : disk_->checkpoints) {
    *registration->add_checkpoints() = CheckpointInfoToProto({checkpoint.header, 1});
  }
  const std::vector<LoggedLineage> logs = *disk_->log->List();
  for (const LoggedLineage& lineage : logs) {
    *registration->add_logs() = LoggedLineageToProto(lineage, *DecodeOrigin(lineage.begin));
  }
  Send(message);
}

void Shard::FromCoordinator(uint64_t stream, const v1::CoordinatorMessage& message) {
  inbox_.emplace_back(stream, message);
  TakeMessages();
}

// In their order, however often the process is stopped.
void Shard::TakeMessages() {
  if (world_->now() < stopped_until_) {
    return Then(stopped_until_ - world_->now(), /*in_epoch=*/false, [this] { TakeMessages(); });
  }
  while (!inbox_.empty()) {
    const auto [stream, message] = std::move(inbox_.front());
    inbox_.pop_front();
    if (stream == stream_) Handle(message);
  }
}

void Shard::Handle(const v1::CoordinatorMessage& message) {
  switch (message.kind_case()) {
    case v1::CoordinatorMessage::kForm:
      return OnForm(message.form());
    case v1::CoordinatorMessage::kPeers:
      if (message.peers().epoch() == plan_.epoch) BringAbout();
      return;
    case v1::CoordinatorMessage::kServe:
      if (message.serve().epoch() != plan_.epoch) return;
      has_served_ = true;
      serving_ = true;
      assembler_.StartEpoch(memory_.value_or(Position{}));
      model_->Serves(position_);
      return;
    case v1::CoordinatorMessage::kGo:
      if (message.go().epoch() == plan_.epoch) OnGo(message.go());
      return;
    case v1::CoordinatorMessage::kStepFailed:
      if (message.step_failed().epoch() != plan_.epoch) return;
      return assembler_.FailStep(message.step_failed().step(), message.step_failed().attempt(),
                                 StatusFromProto(message.step_failed().status()));
    case v1::CoordinatorMessage::kResult:
      return OnResult(message.result());
    case v1::CoordinatorMessage::kCheckpointCommitted:
      return OnCommitted(CheckpointIdFromProto(message.checkpoint_committed().id()));
    case v1::CoordinatorMessage::kDisband:
      EndEpoch(StatusFromProto(message.disband().status()));
      return Then(world_->Delay(), /*in_epoch=*/false, [this] { Register(); });
    case v1::CoordinatorMessage::kRefused:
      // Its former life has not been missed yet.
      if (message.refused().status().code() == static_cast<int>(absl::StatusCode::kAlreadyExists)) {
        return Then(kHeartbeat, /*in_epoch=*/false, [this] { Register(); });
      }
      model_->Violated(absl::StrCat("shard ", rank_, " is refused: ", message.refused().status().message()));
      return;
    default:
      return;
  }
}

void Shard::EndEpoch(const absl::Status& status) {
  ++generation_;
  plan_ = {};
  serving_ = false;
  busy_ = false;
  queue_.clear();
  staged_.clear();
  assembler_.EndEpoch(status);
}

// ---------------------------------------------------------------- requests

void Shard::Submit(Slice slice, StepAssembler::Done done) {
  assembler_.Submit(std::move(slice), std::move(done));
}

void Shard::Propose(v1::Propose proposal, Proposed done) {
  if (stream_ == 0 || !serving_) return done(absl::UnavailableError("forming"));
  proposal.set_epoch(plan_.epoch);
  proposal.set_token(++token_);
  proposals_[token_] = std::move(done);
  v1::ShardMessage message;
  *message.mutable_propose() = std::move(proposal);
  Send(message);
}

void Shard::OnResult(const v1::Result& result) {
  const auto proposed = proposals_.extract(result.token());
  if (proposed.empty()) return;
  const absl::Status status = StatusFromProto(result.status());
  if (status.ok()) {
    proposed.mapped()(result);
  } else {
    proposed.mapped()(status);
  }
}

void Shard::Stage(const std::string& write_id) {
  if (serving_) WriteStaged(write_id, staged_[write_id] = 1);
}

// ---------------------------------------------------------------- what the assembler and the engine say

void Shard::SliceReady(const Slice& slice, int version, int attempt) {
  v1::ShardMessage message;
  *message.mutable_slice_ready() = SliceReadyToProto(slice, version, attempt, world_->now());
  message.mutable_slice_ready()->set_epoch(plan_.epoch);
  Send(message);
}

void Shard::WriteStaged(const std::string& write_id, int64_t rows) {
  v1::ShardMessage message;
  message.mutable_write_staged()->set_epoch(plan_.epoch);
  message.mutable_write_staged()->set_write_id(write_id);
  message.mutable_write_staged()->set_rows(rows);
  Send(message);
}

void Shard::Formed(uint64_t epoch, const absl::StatusOr<FormedState>& state) {
  if (!state.ok()) return EpochFailed(state.status());
  v1::ShardMessage message;
  *message.mutable_formed() = FormedStateToProto(*state);
  message.mutable_formed()->set_epoch(epoch);
  Send(message);
}

void Shard::OperationDone(uint64_t sequence, const absl::Status& status, int64_t bytes) {
  v1::ShardMessage message;
  message.mutable_operation_done()->set_epoch(plan_.epoch);
  message.mutable_operation_done()->set_sequence(sequence);
  message.mutable_operation_done()->set_bytes(bytes);
  *message.mutable_operation_done()->mutable_status() = StatusToProto(status);
  Send(message);
}

void Shard::EpochFailed(const absl::Status& status) {
  queue_.clear();
  v1::ShardMessage message;
  message.mutable_epoch_failed()->set_epoch(plan_.epoch);
  *message.mutable_epoch_failed()->mutable_status() = StatusToProto(status);
  Send(message);
}

// ---------------------------------------------------------------- forming

void Shard::OnForm(const v1::Form& form) {
  EndEpoch(absl::UnavailableError("the group forms anew"));
  plan_ = EpochPlanFromProto(form);
  busy_ = true;  // until it serves, nothing is executed
  saving_.reset();
  v1::ShardMessage message;
  message.mutable_rendezvous()->set_epoch(plan_.epoch);
  Send(message);
}

void Shard::BringAbout() {
  if (plan_.from_memory) {
    const Position answered = assembler_.position();
    if (answered.lineage != position_.lineage || answered.step != position_.step) {
      memory_.reset();
      return EpochFailed(absl::InternalError("rows and replies differ"));
    }
  } else if (absl::Status status = LoadBase(); !status.ok()) {
    return EpochFailed(status);
  }
  ReplayFrom(0);
}

absl::Status Shard::LoadBase() {
  memory_.reset();
  ledger_ = {};
  rows_ = {};
  CheckpointId base;
  if (plan_.origin.checkpoint) {
    base = *plan_.origin.checkpoint;
    const auto found = disk_->checkpoints.find(base);
    if (found == disk_->checkpoints.end()) return absl::NotFoundError(base.ToString());
    rows_ = found->second.rows;
    ledger_ = *Ledger::FromRecord(found->second.ledger);
    if (found->second.header.num_shards != num_shards_) ledger_.answers.clear();
  }
  Arrive({base.lineage, base.step, ledger_.index});
  assembler_.Restore(position_, ledger_.run, std::exchange(ledger_.answers, {}));
  return absl::OkStatus();
}

void Shard::ReplayFrom(size_t stretch) {
  if (stretch == plan_.origin.replays.size()) return Settle();
  const Replay& replay = plan_.origin.replays[stretch];
  if (position_.lineage != replay.lineage) BeginLineage(replay.lineage);
  if (position_.index >= replay.to) return ReplayFrom(stretch + 1);
  const absl::StatusOr<LogRecord> record = disk_->log->Read(position_.lineage, position_.index + 1);
  if (!record.ok()) return EpochFailed(record.status());
  if (record->step > replay.to_step) return ReplayFrom(stretch + 1);
  const Change change = *DecodeChange(record->payload);
  if (const auto* step = std::get_if<StepChange>(&change)) {
    assembler_.Replay(step->operation.step, step->slices);
    return TakeStep(absl::StrCat("replay ", Epoch(), " ", position_.lineage, " ", position_.index + 1),
                    step->operation, /*is_replay=*/true, [this, stretch] { ReplayFrom(stretch); });
  }
  if (const auto* write = std::get_if<WriteChange>(&change)) {
    CommitWrite(write->write);
  } else {
    ChangeRun(std::get<RunChange>(change).run);
  }
  Then(absl::Milliseconds(1), /*in_epoch=*/true, [this, stretch] { ReplayFrom(stretch); });
}

void Shard::BeginLineage(uint64_t lineage) {
  ledger_.run = {};
  Arrive({lineage, position_.step, 0});
  assembler_.Restore(position_, {}, assembler_.AnsweredSlices(position_.step));
}

void Shard::Settle() {
  if (plan_.begins_lineage) BeginLineage(plan_.lineage);
  if (position_.lineage != plan_.lineage) return EpochFailed(absl::InternalError("another lineage goes on"));
  const absl::Status status =
      plan_.begins_lineage ? disk_->log->Begin(plan_.lineage, position_.step, EncodeOrigin(plan_.origin))
                           : disk_->log->Truncate(plan_.lineage, position_.index);
  if (!status.ok()) {
    memory_.reset();
    return EpochFailed(status);
  }
  busy_ = false;
  Formed(plan_.epoch, FormedState{position_, ledger_.run, ledger_.writes});
}

// ---------------------------------------------------------------- operations

std::string Shard::Epoch() const { return absl::StrCat(cluster_->CoordinatorOf(stream_), "/", plan_.epoch); }

void Shard::OnGo(const v1::Go& go) {
  switch (go.what_case()) {
    case v1::Go::kStep: {
      StepOperation step = StepOperationFromProto(go.step());
      if (const absl::Status chosen = assembler_.ChooseSlices(step); !chosen.ok()) return EpochFailed(chosen);
      return Enqueue(go.sequence(), std::move(step));
    }
    case v1::Go::kRun:
      return Enqueue(go.sequence(), RunOperation{RunStateFromProto(go.run())});
    case v1::Go::kCommitWrite:
      return Enqueue(go.sequence(), CommitWriteOperationFromProto(go.commit_write()));
    case v1::Go::kCheckpoint:
      return Enqueue(go.sequence(), CheckpointOperationFromProto(go.checkpoint()));
    case v1::Go::kRelease:
      return Enqueue(go.sequence(), ReleaseOperation{CheckpointIdFromProto(go.release().id())});
    default:
      model_->Violated("a Go that nobody asked for");
  }
}

void Shard::Enqueue(uint64_t sequence, Operation operation) {
  queue_.push_back({sequence, std::move(operation)});
  if (!busy_) RunNext();
}

void Shard::RunNext() {
  busy_ = !queue_.empty();
  if (!busy_) return;
  const Ordered next = queue_.front();
  queue_.pop_front();
  Then(world_->Delay(), /*in_epoch=*/true, [this, next] { Execute(next); });
}

void Shard::Execute(const Ordered& ordered) {
  const uint64_t sequence = ordered.sequence;
  if (const auto* step = std::get_if<StepOperation>(&ordered.operation)) return ExecuteStep(sequence, *step);
  if (const auto* write = std::get_if<CommitWriteOperation>(&ordered.operation)) {
    const CommittedWrite committed{write->write_id, write->rows};
    const std::vector<float> row = {1.0f};
    staged_.erase(write->write_id);
    return ChangeEverywhere(sequence, WriteChange{committed, {{rank_, row}}}, [this, sequence, committed] {
      CommitWrite(committed);
      OperationDone(sequence, absl::OkStatus(), 0);
      RunNext();
    });
  }
  if (const auto* change = std::get_if<RunOperation>(&ordered.operation)) {
    return ChangeEverywhere(sequence, RunChange{change->run}, [this, sequence, run = change->run] {
      ChangeRun(run);
      OperationDone(sequence, absl::OkStatus(), 0);
      RunNext();
    });
  }
  if (const auto* release = std::get_if<ReleaseOperation>(&ordered.operation)) {
    if (const auto found = disk_->checkpoints.find(release->id); found != disk_->checkpoints.end()) {
      found->second.header.kept = false;
    }
    OperationDone(sequence, absl::OkStatus(), 0);
  } else {
    StartCheckpoint(sequence, std::get<CheckpointOperation>(ordered.operation).id, /*kept=*/false);
  }
  RunNext();
}

void Shard::ExecuteStep(uint64_t sequence, const StepOperation& step) {
  if (step.step != position_.step + 1) return EpochFailed(absl::InternalError("another step is next"));
  // A record that is on disk stays there, whatever becomes of the epoch.
  const absl::Status logged =
      disk_->log->Append(position_.lineage, position_.index + 1,
                         {step.step, EncodeChange(StepChange{step, assembler_.ChosenSlices(step.step)})});
  if (!logged.ok()) return EpochFailed(logged);
  Then(world_->Delay(), /*in_epoch=*/true, [this, sequence, step] {
    TakeStep(absl::StrCat("step ", Epoch(), " ", sequence), step, /*is_replay=*/false,
             [this, sequence, step] {
               if (step.checkpoint) StartCheckpoint(sequence, *step.checkpoint, step.params.checkpoint);
               RunNext();
             });
  });
}

void Shard::TakeStep(const std::string& exchange, const StepOperation& step, bool is_replay,
                     std::function<void()> then) {
  const auto slices = assembler_.ChosenSlices(step.step);
  std::vector<Part> own;
  for (const auto& slice : slices) {
    own.push_back({slice->trainer_rank, rank_, slice->digest, slice->incarnation, slice->labels[0]});
  }
  const auto finish = [this, step, slices, is_replay,
                       then = std::move(then)](const std::vector<Part>& parts) {
    model_->StepTaken(ledger_.run, num_shards_, parts, is_replay);
    rows_.steps = Mix(rows_.steps, static_cast<uint64_t>(step.step));
    for (const Part& part : parts) rows_.steps = Mix(Mix(rows_.steps, part.digest), part.trainer);
    std::vector<SliceReply> replies;
    for (const auto& slice : slices) {
      SliceReply& reply = replies.emplace_back();
      reply.step = step.step;
      reply.loss = rows_.LossOf(slice->digest);
    }
    assembler_.Complete(step.step, std::move(replies));
    Arrive(NextPosition(step.step));
    then();
  };
  cluster_->Exchange(exchange, own,
                     [self = weak_from_this(), this, generation = generation_, finish](const auto& parts) {
                       if (const auto alive = self.lock(); alive && generation == generation_) {
                         Then(world_->Delay(), /*in_epoch=*/true, [finish, parts] { finish(parts); });
                       }
                     });
}

void Shard::ChangeEverywhere(uint64_t sequence, Change change, std::function<void()> then) {
  const absl::Status logged =
      disk_->log->Append(position_.lineage, position_.index + 1, {position_.step, EncodeChange(change)});
  if (!logged.ok()) return EpochFailed(logged);
  cluster_->Exchange(
      absl::StrCat("change ", Epoch(), " ", sequence), {},
      [self = weak_from_this(), this, generation = generation_, then = std::move(then)](const auto&) {
        if (const auto alive = self.lock(); alive && generation == generation_) {
          Then(world_->Delay(), /*in_epoch=*/true, then);
        }
      });
}

void Shard::CommitWrite(const CommittedWrite& write) {
  if (!ledger_.Contains(write.write_id)) {
    ++rows_.writes[write.write_id];
    ledger_.AddWrite(write);
  }
  Arrive(NextPosition(position_.step));
}

void Shard::ChangeRun(const RunState& run) {
  ledger_.run = run;
  assembler_.SetRun(run);
  Arrive(NextPosition(position_.step));
}

void Shard::Arrive(const Position& position) {
  position_ = position;
  ledger_.index = position.index;
  memory_ = position;
  model_->Arrived(position, rows_);
}

// ---------------------------------------------------------------- checkpoints

void Shard::StartCheckpoint(uint64_t sequence, const CheckpointId& id, bool kept) {
  FinishCheckpoint();
  Ledger ledger = ledger_;
  ledger.answers = assembler_.AnsweredSlices(position_.step);
  CheckpointHeader header;
  header.id = id;
  header.index = position_.index;
  header.num_shards = num_shards_;
  header.rank = rank_;
  header.kept = kept;
  saving_ = Saving{sequence, generation_, ++savings_, {header, ledger.ToRecord(), rows_}};
  Then(world_->Delay() * 10, /*in_epoch=*/false, [this, number = savings_] {
    if (saving_ && saving_->number == number) FinishCheckpoint();
  });
}

void Shard::FinishCheckpoint() {
  if (!saving_) return;
  const Saving saved = *std::exchange(saving_, std::nullopt);
  disk_->checkpoints[saved.checkpoint.header.id] = saved.checkpoint;
  if (saved.generation == generation_) OperationDone(saved.sequence, absl::OkStatus(), 1);
}

void Shard::OnCommitted(const CheckpointId& id) {
  int newer = 0;
  std::optional<Position> oldest;
  for (auto next = disk_->checkpoints.upper_bound(id); next != disk_->checkpoints.begin();) {
    const auto it = std::prev(next);
    const CheckpointHeader& header = it->second.header;
    next = it;
    if (header.num_shards != num_shards_) continue;
    if (newer++ < keep_) {
      if (header.id.lineage == id.lineage) oldest = Position{id.lineage, header.id.step, header.index};
    } else if (!header.kept) {
      next = disk_->checkpoints.erase(it);
    }
  }
  if (oldest) (void)disk_->log->Cut(oldest->lineage, oldest->index);
}

}  // namespace ccs::simulation
