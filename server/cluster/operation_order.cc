#include "server/cluster/operation_order.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/messages.h"
#include "server/cluster/status_proto.h"
#include "server/cluster/trainer_run.h"
#include "server/engine/error_info.h"
#include "server/fault_point.h"

namespace ccs {
namespace {

// Rows staged on a shard are announced on its own stream, which may be slower than the one that a commit
// comes on.
constexpr absl::Duration kStagedRowsGrace = absl::Seconds(1);

uint64_t RandomNonce() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

absl::Status NoCheckpointDir() {
  return WithErrorInfo(absl::FailedPreconditionError("the servers run without --checkpoint_dir"),
                       {.reason = "no_checkpoint_dir"});
}

}  // namespace

OperationOrder::OperationOrder(const CoordinatorOptions& options, int max_batch, const Start& start,
                               CheckpointCatalogue* catalogue, SendToRank send)
    : options_(options),
      start_(start),
      catalogue_(catalogue),
      send_(std::move(send)),
      gate_({.num_shards = options.num_shards,
             .max_batch = max_batch,
             .can_checkpoint = options.has_checkpoint_dir,
             .step_timeout = options.step_timeout},
            start.state.position.step),
      run_(start.state.run),
      pending_(options.num_shards) {
  index_ = start.state.position.index;
  gate_.SetRun(run_);
  for (const CommittedWrite& write : start.state.committed_writes) {
    writes_.Committed(write.write_id, write.rows);
  }
}

// ---------------------------------------------------------------- steps

void OperationOrder::SliceReady(int rank, const v1::SliceReady& slice, absl::Time now) {
  if (draining_) return;
  run_heard_ = now;
  gate_.Add(rank, slice, now);
  DecideStep(now);
}

void OperationOrder::DecideStep(absl::Time now) {
  const std::optional<absl::Status> verdict = gate_.Decide(now);
  if (!verdict) return;
  if (verdict->ok()) {
    GoStep();
  } else {
    FailStep(*verdict);
  }
}

void OperationOrder::GoStep() {
  const bool interval_is_due = options_.has_checkpoint_dir && options_.checkpoint_interval_steps > 0 &&
                               gate_.step() % options_.checkpoint_interval_steps == 0;
  std::optional<v1::CheckpointId> checkpoint;
  if (interval_is_due || gate_.asks_for_checkpoint()) {
    checkpoint = NewCheckpointId();
    checkpoint->set_step(gate_.step());
  }
  last_change_ = ++sequence_;
  ++index_;
  for (int rank = 0; rank < options_.num_shards; ++rank) {
    v1::CoordinatorMessage message;
    v1::Go* go = message.mutable_go();
    go->set_epoch(start_.epoch);
    go->set_sequence(sequence_);
    *go->mutable_step() = gate_.Operation(rank);
    if (checkpoint) *go->mutable_step()->mutable_checkpoint() = *checkpoint;
    send_(rank, message);
    ReachFaultPoint("coordinator/go_sent");
  }
  if (checkpoint) AwaitCheckpoint(sequence_, *checkpoint, /*kept=*/gate_.asks_for_checkpoint(), {});
  gate_.Passed();
}

void OperationOrder::FailStep(const absl::Status& status) {
  spdlog::warn("step {} failed, attempt {}: {}", gate_.step(), gate_.attempt(),
               std::string(status.message()));
  v1::CoordinatorMessage message;
  v1::StepFailed* failed = message.mutable_step_failed();
  failed->set_epoch(start_.epoch);
  failed->set_step(gate_.step());
  failed->set_attempt(gate_.attempt());
  *failed->mutable_status() = StatusToProto(status);
  SendToAll(message);
  gate_.Failed();
}

// ---------------------------------------------------------------- proposals

void OperationOrder::Propose(int rank, const v1::Propose& proposal, absl::Time now) {
  const Proposer proposer{rank, proposal.token()};
  if (proposal.has_drain()) return Drain(proposer);
  if (draining_) return Reply(proposer, absl::UnavailableError(drain_text_));
  switch (proposal.what_case()) {
    case v1::Propose::kOpenRun:
      return OpenRun(proposer, proposal.open_run(), now);
    case v1::Propose::kCloseRun:
      return CloseRun(proposer, proposal.close_run());
    case v1::Propose::kEvaluate:
      return Evaluate(proposer, proposal.evaluate());
    case v1::Propose::kNearest:
      return Nearest(proposer, proposal.nearest());
    case v1::Propose::kCommitWrite:
      if (!TryCommit(proposer, proposal.commit_write(), /*may_wait=*/true)) {
        held_commits_.push_back({proposer, proposal.commit_write(), now + kStagedRowsGrace});
      }
      return;
    case v1::Propose::kCheckpoint:
      if (!options_.has_checkpoint_dir) return Reply(proposer, NoCheckpointDir());
      return Checkpoint("asked for",
                        [this, proposer](const absl::Status& status, const v1::CheckpointInfo& info) {
                          v1::Result result;
                          if (status.ok()) *result.mutable_checkpoint() = info;
                          Reply(proposer, status, std::move(result));
                        });
    case v1::Propose::kReleaseCheckpoint:
      return Release(proposer, CheckpointIdFromProto(proposal.release_checkpoint().id()));
    default:
      return Reply(proposer, absl::UnimplementedError("the coordinator does not know this proposal"));
  }
}

void OperationOrder::OpenRun(const Proposer& proposer, const v1::OpenRunRequest& request, absl::Time now) {
  const bool replaceable = request.takeover() || now - run_heard_ > options_.run_lease;
  absl::StatusOr<RunState> opened = OpenedRun(run_, request, replaceable);
  if (!opened.ok()) return Reply(proposer, opened.status());
  if (!StandsWhereWanted(proposer, request)) return;
  run_heard_ = now;
  if (!run_.run_id.empty() && opened->run_id != run_.run_id) {
    spdlog::warn("run '{}' takes the cluster over from run '{}'", opened->run_id, run_.run_id);
  }
  spdlog::info("run '{}': trainer {} of {} opens it at step {}", request.run_id(), request.trainer_rank(),
               request.num_trainers(), position().step);
  ChangeRun(*opened, [this, proposer, incarnation = request.start_nonce()] {
    v1::Result result;
    v1::OpenRunReply* reply = result.mutable_open_run();
    reply->set_incarnation(incarnation);
    reply->mutable_position()->set_lineage(position().lineage);
    reply->mutable_position()->set_step(position().step);
    Reply(proposer, absl::OkStatus(), std::move(result));
  });
}

bool OperationOrder::StandsWhereWanted(const Proposer& proposer, const v1::OpenRunRequest& request) {
  if (!request.has_resume_step() || request.resume_step() == position().step) return true;
  const auto& incarnations = run_.incarnations;
  if (std::find(incarnations.begin(), incarnations.end(), request.start_nonce()) != incarnations.end()) {
    return true;  // repeated; it has been there
  }
  if (start_.out_of_reach && start_.out_of_reach->first == request.resume_step()) {
    Reply(proposer, start_.out_of_reach->second);
    return false;
  }
  resume_step_ = request.resume_step();
  over_ = absl::UnavailableError(absl::StrCat("run '", request.run_id(), "' goes on from step ",
                                              request.resume_step(), ", not from step ", position().step,
                                              ": the shards restore it"));
  return false;
}

void OperationOrder::CloseRun(const Proposer& proposer, const v1::CloseRunRequest& request) {
  if (run_.run_id.empty() || run_.run_id != request.run_id()) return Reply(proposer, absl::OkStatus());
  spdlog::info("run '{}' is closed at step {}", run_.run_id, position().step);
  ChangeRun({}, [this, proposer] { Reply(proposer, absl::OkStatus()); });
}

void OperationOrder::ChangeRun(const RunState& run, std::function<void()> finished) {
  run_ = run;
  ++index_;
  gate_.SetRun(run);
  v1::Go go;
  *go.mutable_run() = RunStateToProto(run);
  pending_.Await(Broadcast(std::move(go)),
                 [finished = std::move(finished)](const OperationOutcome&) { finished(); });
}

void OperationOrder::Evaluate(const Proposer& proposer, v1::EvaluateOp query) {
  query.set_origin_rank(proposer.rank);
  v1::Go go;
  *go.mutable_evaluate() = std::move(query);
  Broadcast(std::move(go));
  Reply(proposer, absl::OkStatus());
}

void OperationOrder::Nearest(const Proposer& proposer, v1::NearestOp query) {
  query.set_origin_rank(proposer.rank);
  v1::Go go;
  *go.mutable_nearest() = std::move(query);
  Broadcast(std::move(go));
  Reply(proposer, absl::OkStatus());
}

// ---------------------------------------------------------------- writes

void OperationOrder::WriteStaged(int rank, const v1::WriteStaged& staged, absl::Time now) {
  writes_.Staged(rank, staged.write_id(), staged.rows());
  RetryHeldCommits(now);
}

bool OperationOrder::TryCommit(const Proposer& proposer, const v1::CommitWriteOp& commit, bool may_wait) {
  if (const auto rows = writes_.CommittedRows(commit.write_id())) {
    v1::Result result;
    result.set_committed_rows(*rows);
    Reply(proposer, absl::OkStatus(), std::move(result));
    return true;
  }
  if (const auto under_way = committing_.find(commit.write_id()); under_way != committing_.end()) {
    under_way->second.push_back(proposer);
    return true;
  }
  const int64_t staged = writes_.StagedRows(commit.write_id());
  if (staged < commit.rows() && may_wait) return false;
  if (staged != commit.rows()) {
    Reply(proposer,
          WithErrorInfo(absl::FailedPreconditionError(absl::StrCat(
                            "write '", commit.write_id(), "': ", staged, " rows are staged, the commit says ",
                            commit.rows(), "; stage it again")),
                        {.reason = "staged_rows_missing"}));
    return true;
  }
  committing_[commit.write_id()] = {proposer};
  GoCommit(commit);
  return true;
}

void OperationOrder::GoCommit(const v1::CommitWriteOp& commit) {
  v1::Go go;
  *go.mutable_commit_write() = commit;
  ++index_;
  last_change_ = Broadcast(std::move(go));
  pending_.Await(last_change_,
                 [this, commit](const OperationOutcome& outcome) { FinishCommit(commit, outcome); });
}

void OperationOrder::FinishCommit(const v1::CommitWriteOp& commit, const OperationOutcome& outcome) {
  const absl::Status status = outcome.status();
  const auto waiting = committing_.extract(commit.write_id());
  v1::Result result;
  if (status.ok()) {
    spdlog::info("write '{}': {} centres are committed", commit.write_id(), commit.rows());
    writes_.Committed(commit.write_id(), commit.rows());
    result.set_committed_rows(commit.rows());
  } else if (!outcome.failed_everywhere()) {
    // Some shards have the rows and others do not: only a common state brings them together again.
    over_ = absl::UnavailableError(
        absl::StrCat("write '", commit.write_id(), "' was not committed on every shard: ", status.message()));
  }
  for (const Proposer& proposer : waiting.mapped()) Reply(proposer, status, result);
}

void OperationOrder::RetryHeldCommits(absl::Time now) {
  std::erase_if(held_commits_, [this, now](const HeldCommit& held) {
    return TryCommit(held.proposer, held.commit, /*may_wait=*/now < held.deadline);
  });
}

// ---------------------------------------------------------------- checkpoints

v1::CheckpointId OperationOrder::NewCheckpointId() const {
  const uint64_t nonce = options_.make_nonce ? options_.make_nonce() : RandomNonce();
  return CheckpointIdToProto({position().lineage, position().step, nonce});
}

void OperationOrder::Checkpoint(const std::string& reason, CheckpointFinished finished) {
  const v1::CheckpointId id = NewCheckpointId();
  v1::Go go;
  *go.mutable_checkpoint()->mutable_id() = id;
  go.mutable_checkpoint()->set_reason(reason);
  AwaitCheckpoint(Broadcast(std::move(go)), id, /*kept=*/false, std::move(finished));
}

void OperationOrder::AwaitCheckpoint(uint64_t sequence, const v1::CheckpointId& id, bool kept,
                                     CheckpointFinished finished) {
  auto& waiting = checkpoints_[sequence];
  if (finished) waiting.push_back(std::move(finished));
  v1::CheckpointInfo info;
  *info.mutable_id() = id;
  info.set_index(index_);
  info.set_kept(kept);
  pending_.Await(sequence, [this, sequence, info](const OperationOutcome& outcome) {
    FinishCheckpoint(sequence, info, outcome);
  });
}

void OperationOrder::FinishCheckpoint(uint64_t sequence, v1::CheckpointInfo info,
                                      const OperationOutcome& outcome) {
  const v1::CheckpointId id = info.id();
  info.set_created_unix_s(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  for (size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    if (!outcome.ranks[rank].status.ok()) continue;
    info.set_bytes(outcome.ranks[rank].bytes);
    catalogue_->Written(static_cast<int>(rank), info);
  }
  const absl::Status status = outcome.status();
  const CheckpointId name = CheckpointIdFromProto(id);
  if (status.ok()) {
    info = *catalogue_->FindCommon(name);
    catalogue_->Committed(name);
    last_checkpointed_ = std::max(last_checkpointed_, sequence);
    spdlog::info("checkpoint {} is whole on every shard, {} bytes", name.ToString(), info.bytes());
    v1::CoordinatorMessage message;
    *message.mutable_checkpoint_committed()->mutable_id() = id;
    SendToAll(message);
  } else {
    spdlog::error("checkpoint {} failed: {}", name.ToString(), std::string(status.message()));
  }
  const auto waiting = checkpoints_.extract(sequence);
  for (const CheckpointFinished& finished : waiting.mapped()) finished(status, info);
}

void OperationOrder::Release(const Proposer& proposer, const CheckpointId& id) {
  if (!catalogue_->FindCommon(id)) {
    return Reply(proposer, absl::NotFoundError(
                               absl::StrCat("no checkpoint ", id.ToString(), " is whole on every shard")));
  }
  v1::Go go;
  *go.mutable_release()->mutable_id() = CheckpointIdToProto(id);
  pending_.Await(Broadcast(std::move(go)), [this, proposer, id](const OperationOutcome& outcome) {
    if (outcome.status().ok()) {
      catalogue_->Released(id);
      spdlog::info("checkpoint {} is released", id.ToString());
    }
    Reply(proposer, outcome.status());
  });
}

// ---------------------------------------------------------------- drain

void OperationOrder::Drain(const Proposer& proposer) {
  drainers_.push_back(proposer);
  if (draining_) return;
  draining_ = true;
  drain_text_ = absl::StrCat("draining: rank ", proposer.rank, " was asked to stop");
  spdlog::info("{}", drain_text_);
  for (const HeldCommit& held : std::exchange(held_commits_, {})) {
    Reply(held.proposer, absl::UnavailableError(drain_text_));
  }
  const auto finish = [this](const absl::Status& status, const v1::CheckpointInfo& info) {
    FinishDrain(status, info);
  };
  if (!options_.has_checkpoint_dir || last_change_ <= last_checkpointed_) return finish(absl::OkStatus(), {});
  if (!checkpoints_.empty() && checkpoints_.rbegin()->first >= last_change_) {
    checkpoints_.rbegin()->second.push_back(finish);
    return;
  }
  Checkpoint("drain", finish);
}

void OperationOrder::FinishDrain(const absl::Status& status, const v1::CheckpointInfo& checkpoint) {
  v1::Result result;
  if (status.ok() && checkpoint.has_id()) *result.mutable_checkpoint() = checkpoint;
  for (const Proposer& proposer : drainers_) Reply(proposer, status, result);
  over_ = WithErrorInfo(absl::UnavailableError(drain_text_), {.reason = "draining"});
}

// ---------------------------------------------------------------- the rest

void OperationOrder::OperationDone(int rank, const v1::OperationDone& done) {
  pending_.Done(rank, done.sequence(), StatusFromProto(done.status()), done.bytes());
}

void OperationOrder::Tick(absl::Time now) {
  if (run_heard_ == absl::InfiniteFuture()) run_heard_ = now;
  if (draining_) return;
  DecideStep(now);
  RetryHeldCommits(now);
}

std::string OperationOrder::Describe() const {
  if (draining_) return drain_text_;
  const std::vector<int> missing = gate_.MissingTrainers();
  if (missing.empty()) return "";
  return absl::StrCat("step ", gate_.step(), " waits for trainers ", absl::StrJoin(missing, ", "));
}

uint64_t OperationOrder::Broadcast(v1::Go go) {
  go.set_epoch(start_.epoch);
  go.set_sequence(++sequence_);
  v1::CoordinatorMessage message;
  *message.mutable_go() = std::move(go);
  SendToAll(message);
  return sequence_;
}

void OperationOrder::SendToAll(const v1::CoordinatorMessage& message) {
  for (int rank = 0; rank < options_.num_shards; ++rank) send_(rank, message);
}

void OperationOrder::Reply(const Proposer& proposer, const absl::Status& status, v1::Result result) {
  result.set_token(proposer.token);
  *result.mutable_status() = StatusToProto(status);
  v1::CoordinatorMessage message;
  *message.mutable_result() = std::move(result);
  send_(proposer.rank, message);
}

}  // namespace ccs
