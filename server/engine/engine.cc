#include "server/engine/engine.h"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/change.h"
#include "server/engine/change_log.h"
#include "server/engine/checkpointing.h"
#include "server/engine/exchange.h"
#include "server/engine/ledger.h"
#include "server/engine/pending_queries.h"
#include "server/engine/progress_board.h"
#include "server/engine/query_runner.h"
#include "server/engine/step_runner.h"
#include "server/fault_point.h"

namespace ccs {

class Engine::Impl {
 public:
  Impl(EngineOptions options, EngineParts parts);
  ~Impl();

  void StartEpoch(const EpochPlan& plan, Rendezvous rendezvous);
  void EndEpoch(const absl::Status& status);
  void Enqueue(uint64_t sequence, Operation operation);
  void CheckpointCommitted(const CheckpointId& id);
  void ReadCentres(std::vector<int64_t> class_ids, bool with_momentum,
                   std::function<void(absl::StatusOr<CentreRows>)> done);
  PendingQueries& queries() { return queries_; }
  EngineProgress progress() const { return progress_.Read(); }
  std::optional<Position> memory() const {
    std::lock_guard lock(mutex_);
    return memory_;
  }

 private:
  enum class State { kNoEpoch, kEpoch, kFailed };
  struct Start {
    EpochPlan plan;
    Rendezvous rendezvous;
  };
  struct Ordered {
    uint64_t sequence = 0;
    Operation operation;
  };
  struct Read {
    std::vector<int64_t> class_ids;
    bool with_momentum = false;
    std::function<void(absl::StatusOr<CentreRows>)> done;
  };
  // What there is to do, in this order.
  struct Work {
    std::optional<CheckpointId> prune;
    std::optional<Start> start;
    bool checkpoint_written = false;
    std::deque<Read> reads;
    std::deque<Ordered> operations;
    bool empty() const {
      return !prune && !start && !checkpoint_written && reads.empty() && operations.empty();
    }
  };

  void Loop();
  // For one round: all but the operations, of which it is one at most. mutex_ is held.
  Work TakeWork();
  // The engine's thread.
  void Do(Work work);
  void Prune(const CheckpointId& newest);
  void Form(const Start& start);
  absl::Status Connect(const Rendezvous& rendezvous);
  absl::Status BringAbout(const EpochPlan& plan);
  void BeginLineage(uint64_t lineage);
  absl::Status CheckMemory();
  absl::Status LoadBase(const EpochPlan& plan);
  absl::Status ReplayLog(const Replay& replay);
  absl::Status Redo(const Change& change);
  FormedState state() const { return {position_, ledger_.run, ledger_.writes}; }
  void Serve(const Read& read);
  absl::StatusOr<CentreRows> ReadRows(const Read& read) const;
  void Execute(const Ordered& ordered);
  absl::Status Run(uint64_t sequence, const StepOperation& step);
  absl::Status Run(uint64_t sequence, const EvaluateOperation& evaluate);
  absl::Status Run(uint64_t sequence, const NearestOperation& nearest);
  absl::Status Run(uint64_t sequence, const CommitWriteOperation& write);
  absl::Status Run(uint64_t sequence, const CheckpointOperation& checkpoint);
  absl::Status Run(uint64_t sequence, const ReleaseOperation& release);
  absl::Status Run(uint64_t sequence, const RunOperation& operation);
  absl::Status TakeStep(const StepOperation& step);
  absl::Status CommitWrite(const WriteChange& change);
  absl::Status ChangeRun(const RunState& run);
  // Has a change other than a step on every shard's disk before any shard goes on.
  absl::Status LogEverywhere(Change change);
  absl::Status WriteRows(const std::map<int64_t, std::vector<float>>& rows);
  // The position after one more change.
  Position NextPosition(int64_t step) const { return {position_.lineage, step, position_.index + 1}; }
  void ForgetMemory() {
    std::lock_guard lock(mutex_);
    memory_.reset();
  }
  // A change is complete.
  void Arrive(const Position& position);
  void StartCheckpoint(uint64_t sequence, const CheckpointId& id, bool kept);
  // Waits for the one that is being written, if any.
  void FinishCheckpoint();
  void BeforeChange(absl::Span<const int64_t> rows);
  // Drops what is queued, unless the epoch is being ended already. Returns whether this ended it.
  bool LeaveEpoch(const absl::Status& status);
  void AbortCollective();

  const EngineOptions options_;
  const EngineParts parts_;
  PendingQueries queries_;
  ProgressBoard progress_;

  // The engine's thread only.
  ChangeLog log_;
  StepRunner steps_;
  QueryRunner query_runner_;
  Checkpointing checkpointing_;
  Ledger ledger_;  // its answers are the assembler's
  Position position_;

  mutable std::mutex mutex_;
  std::optional<Position> memory_;
  std::condition_variable changed_;
  State state_ = State::kNoEpoch;
  bool busy_ = false;  // the thread is in Do
  bool stopping_ = false;
  Work queued_;
  // Replaced under the lock; used by the engine's thread without it, and by anyone who aborts with it.
  std::unique_ptr<Collective> collective_;

  std::thread thread_;
};

Engine::Impl::Impl(EngineOptions options, EngineParts parts)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      log_(parts_.log),
      steps_(options_, parts_, &log_, &progress_),
      query_runner_(options_, parts_.backend, &queries_, &progress_),
      checkpointing_(options_, parts_, &progress_,
                     [this] {
                       std::lock_guard lock(mutex_);
                       queued_.checkpoint_written = true;
                       changed_.notify_all();
                     }),
      thread_([this] { Loop(); }) {}

Engine::Impl::~Impl() {
  EndEpoch(absl::UnavailableError("the shard is stopping"));
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  checkpointing_.Cancel();  // its thread uses what is destroyed before it
}

// ---- Any thread.

void Engine::Impl::StartEpoch(const EpochPlan& plan, Rendezvous rendezvous) {
  std::lock_guard lock(mutex_);
  state_ = State::kEpoch;
  queued_.start = Start{plan, std::move(rendezvous)};
  changed_.notify_all();
}

void Engine::Impl::EndEpoch(const absl::Status& status) {
  std::deque<Read> reads;
  std::unique_ptr<Collective> collective;
  {
    std::unique_lock lock(mutex_);
    state_ = State::kNoEpoch;
    queued_.start.reset();
    queued_.operations.clear();
    reads.swap(queued_.reads);
    if (collective_ != nullptr) collective_->Abort();
    changed_.wait(lock, [this] { return !busy_; });
    collective = std::move(collective_);
  }
  for (const Read& read : reads) read.done(status);
  queries_.FailAll(status);
}

void Engine::Impl::Enqueue(uint64_t sequence, Operation operation) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kEpoch) return;
  queued_.operations.push_back({sequence, std::move(operation)});
  changed_.notify_all();
}

void Engine::Impl::CheckpointCommitted(const CheckpointId& id) {
  std::lock_guard lock(mutex_);
  queued_.prune = id;
  changed_.notify_all();
}

void Engine::Impl::ReadCentres(std::vector<int64_t> class_ids, bool with_momentum,
                               std::function<void(absl::StatusOr<CentreRows>)> done) {
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kEpoch) {
      queued_.reads.push_back({std::move(class_ids), with_momentum, std::move(done)});
      changed_.notify_all();
      return;
    }
  }
  done(absl::UnavailableError("the shard group is forming"));
}

// ---- The engine's thread.

void Engine::Impl::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    Work work = TakeWork();
    if (work.empty()) {
      if (stopping_) return;
      changed_.wait(lock);
      continue;
    }
    busy_ = true;
    lock.unlock();
    Do(std::move(work));
    progress_.SetActivity("idle");
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

Engine::Impl::Work Engine::Impl::TakeWork() {
  Work work;
  work.prune = std::exchange(queued_.prune, std::nullopt);
  work.start = std::exchange(queued_.start, std::nullopt);
  work.checkpoint_written = std::exchange(queued_.checkpoint_written, false);
  work.reads.swap(queued_.reads);
  if (!work.start && !queued_.operations.empty()) {
    work.operations.push_back(std::move(queued_.operations.front()));
    queued_.operations.pop_front();
  }
  return work;
}

void Engine::Impl::Do(Work work) {
  if (work.prune) Prune(*work.prune);
  if (work.start) Form(*work.start);
  if (work.checkpoint_written) FinishCheckpoint();
  for (const Read& read : work.reads) Serve(read);
  for (const Ordered& ordered : work.operations) Execute(ordered);
}

void Engine::Impl::Prune(const CheckpointId& newest) {
  if (parts_.mirror != nullptr) parts_.mirror->Offer(newest);
  const absl::StatusOr<Position> oldest = checkpointing_.Prune(newest);
  ReachFaultPoint("checkpoint/before_log_cut");
  const absl::Status status = oldest.ok() ? log_.Cut(*oldest) : oldest.status();
  if (!status.ok()) spdlog::warn("what is no longer needed could not be removed: {}", status.ToString());
}

void Engine::Impl::Form(const Start& start) {
  checkpointing_.Cancel();  // who asked for it is gone with the last epoch
  absl::Status status = Connect(start.rendezvous);
  if (status.ok()) status = BringAbout(start.plan);
  ReachFaultPoint("form/before_formed");
  if (status.ok()) return parts_.control->Formed(start.plan.epoch, state());
  if (!LeaveEpoch(status)) return;
  spdlog::error("epoch {} cannot start: {}", start.plan.epoch, status.ToString());
  parts_.control->Formed(start.plan.epoch, status);
  AbortCollective();
}

absl::Status Engine::Impl::Connect(const Rendezvous& rendezvous) {
  progress_.SetActivity("connecting");
  auto collective = parts_.make_collective(absl::Now() + options_.connect_timeout, rendezvous);
  if (!collective.ok()) return collective.status();
  std::lock_guard lock(mutex_);
  if (state_ != State::kEpoch) return absl::UnavailableError("the epoch has ended while it formed");
  collective_ = *std::move(collective);
  return absl::OkStatus();
}

absl::Status Engine::Impl::BringAbout(const EpochPlan& plan) {
  absl::Status status = plan.from_memory ? CheckMemory() : LoadBase(plan);
  log_.set_replaying(true);
  for (const Replay& replay : plan.origin.replays) {
    if (status.ok()) status = ReplayLog(replay);
  }
  log_.set_replaying(false);
  if (!status.ok()) return status;
  if (plan.begins_lineage) BeginLineage(plan.lineage);
  if (position_.lineage != plan.lineage) {
    return absl::InternalError(
        absl::StrCat("lineage ", plan.lineage, " was to go on, the state is of lineage ", position_.lineage));
  }
  spdlog::info("epoch {}: lineage {} {} after step {} from {}", plan.epoch, plan.lineage,
               plan.begins_lineage ? "begins" : "goes on", position_.step,
               plan.from_memory ? "memory" : plan.origin.ToString());
  status = log_.Settle(plan, position_);
  // A lineage that the log does not have cannot go on from memory.
  if (!status.ok()) ForgetMemory();
  return status;
}

// Whoever trained in another lineage has to open the run again. Then it may still ask for its reply to the
// last step, which is part of this history too.
void Engine::Impl::BeginLineage(uint64_t lineage) {
  ledger_.run = {};
  Arrive({lineage, position_.step, 0});
  parts_.assembler->Restore(position_, {}, parts_.assembler->AnsweredSlices(position_.step));
}

// Rows without the replies of their last step are of no use to go on from.
absl::Status Engine::Impl::CheckMemory() {
  const Position answered = parts_.assembler->position();
  if (answered.lineage == position_.lineage && answered.step == position_.step) return absl::OkStatus();
  ForgetMemory();
  return absl::InternalError(absl::StrCat("rows are at step ", position_.step, " of lineage ",
                                          position_.lineage, ", replies at step ", answered.step,
                                          " of lineage ", answered.lineage));
}

absl::Status Engine::Impl::LoadBase(const EpochPlan& plan) {
  progress_.SetActivity("restoring");
  ForgetMemory();
  ledger_ = {};
  absl::Status status = plan.origin.checkpoint ? checkpointing_.Restore(*plan.origin.checkpoint, &ledger_)
                                               : checkpointing_.Initialise();
  if (!status.ok()) return status;
  const CheckpointId base = plan.origin.checkpoint.value_or(CheckpointId{});
  Arrive({base.lineage, base.step, ledger_.index});
  parts_.assembler->Restore(position_, ledger_.run, std::exchange(ledger_.answers, {}));
  return absl::OkStatus();
}

absl::Status Engine::Impl::ReplayLog(const Replay& replay) {
  if (position_.lineage != replay.lineage) BeginLineage(replay.lineage);
  const int64_t first = position_.index + 1;
  while (position_.index < replay.to) {
    const absl::StatusOr<LogRecord> record = log_.Read(NextPosition(position_.step));
    if (!record.ok()) return record.status();
    if (record->step > replay.to_step) break;
    ReachFaultPoint("replay/record");
    const absl::StatusOr<Change> change = DecodeChange(record->payload);
    if (!change.ok()) return change.status();
    if (absl::Status status = Redo(*change); !status.ok()) return status;
  }
  if (position_.index >= first) {
    spdlog::info("replayed records {} to {} of lineage {}, up to step {}", first, position_.index,
                 replay.lineage, position_.step);
  }
  return absl::OkStatus();
}

absl::Status Engine::Impl::Redo(const Change& change) {
  if (const auto* write = std::get_if<WriteChange>(&change)) return CommitWrite(*write);
  if (const auto* run = std::get_if<RunChange>(&change)) return ChangeRun(run->run);
  const auto& step = std::get<StepChange>(change);
  parts_.assembler->Replay(step.operation.step, step.slices);
  return TakeStep(step.operation);
}

void Engine::Impl::Arrive(const Position& position) {
  position_ = position;
  ledger_.index = position.index;
  progress_.SetStep(position.step);
  std::lock_guard lock(mutex_);
  memory_ = position;
}

void Engine::Impl::Serve(const Read& read) {
  {
    // A read that was taken together with the work that ended the epoch.
    std::unique_lock lock(mutex_);
    if (state_ != State::kEpoch) {
      lock.unlock();
      read.done(absl::UnavailableError("the shard group has to form again"));
      return;
    }
  }
  progress_.SetActivity("read");
  read.done(ReadRows(read));
}

absl::StatusOr<CentreRows> Engine::Impl::ReadRows(const Read& read) const {
  const kernels::ShardConfig& shard = parts_.backend->config();
  CentreRows rows;
  rows.position = position_;
  rows.centres.resize(read.class_ids.size() * shard.dim);
  if (read.with_momentum) rows.momentum.resize(rows.centres.size());
  for (size_t i = 0; i < read.class_ids.size(); ++i) {
    const int64_t row = read.class_ids[i] - shard.class_start;
    if (row < 0 || row >= shard.num_local) {
      return absl::InvalidArgumentError(absl::StrCat("class ", read.class_ids[i],
                                                     " is not on this shard, which has [", shard.class_start,
                                                     ", ", shard.class_start + shard.num_local, ")"));
    }
    float* const momentum = read.with_momentum ? rows.momentum.data() + i * shard.dim : nullptr;
    absl::Status status = parts_.backend->ReadRows(row, 1, rows.centres.data() + i * shard.dim, momentum);
    if (!status.ok()) return status;
  }
  return rows;
}

void Engine::Impl::Execute(const Ordered& ordered) {
  const absl::Status status =
      std::visit([&](const auto& operation) { return Run(ordered.sequence, operation); }, ordered.operation);
  if (status.ok()) return;
  (void)log_.Wait();  // what it keeps is told at the next registration
  if (!LeaveEpoch(status)) return;
  spdlog::error("the epoch has failed after step {}: {}", position_.step, status.ToString());
  parts_.control->EpochFailed(status);
  AbortCollective();
}

bool Engine::Impl::LeaveEpoch(const absl::Status& status) {
  std::deque<Read> reads;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kEpoch) return false;
    state_ = State::kFailed;
    queued_.operations.clear();
    reads.swap(queued_.reads);
  }
  for (const Read& read : reads) read.done(absl::UnavailableError(status.message()));
  return true;
}

// So that the others need not wait for this shard. After the coordinator was told why: what they will say is
// only that this one is gone.
void Engine::Impl::AbortCollective() {
  std::lock_guard lock(mutex_);
  if (collective_ != nullptr) collective_->Abort();
}

absl::Status Engine::Impl::Run(uint64_t sequence, const StepOperation& step) {
  if (absl::Status status = TakeStep(step); !status.ok()) return status;
  // One that the trainers have asked for is theirs; one that was merely due is not.
  if (step.checkpoint) StartCheckpoint(sequence, *step.checkpoint, /*kept=*/step.params.checkpoint);
  return absl::OkStatus();
}

absl::Status Engine::Impl::TakeStep(const StepOperation& step) {
  if (step.step != position_.step + 1) {
    return absl::InternalError(
        absl::StrCat("step ", step.step, " was started where step ", position_.step + 1, " is next"));
  }
  Exchange exchange(collective_.get(), options_.collective_timeout);
  const Position next = NextPosition(step.step);
  const absl::StatusOr<StepObservation> seen =
      steps_.Run(step, next, &exchange, [this](absl::Span<const int64_t> rows) { BeforeChange(rows); });
  if (!seen.ok()) return seen.status();
  Arrive(next);
  parts_.metrics->StepFinished(*seen);
  return absl::OkStatus();
}

absl::Status Engine::Impl::Run(uint64_t /*sequence*/, const EvaluateOperation& evaluate) {
  Exchange exchange(collective_.get(), options_.collective_timeout);
  return query_runner_.Run(evaluate, position_, &exchange);
}

absl::Status Engine::Impl::Run(uint64_t /*sequence*/, const NearestOperation& nearest) {
  Exchange exchange(collective_.get(), options_.collective_timeout);
  return query_runner_.Run(nearest, position_, &exchange);
}

absl::Status Engine::Impl::Run(uint64_t sequence, const CommitWriteOperation& write) {
  progress_.SetActivity("write");
  WriteChange change{{write.write_id, write.rows}, parts_.staged_writes->Take(write.write_id)};
  if (absl::Status status = LogEverywhere(change); !status.ok()) return status;
  if (absl::Status status = CommitWrite(change); !status.ok()) return status;
  spdlog::info("write '{}' committed: {} centres over all shards", write.write_id, write.rows);
  parts_.control->OperationDone(sequence, absl::OkStatus(), 0);
  return absl::OkStatus();
}

absl::Status Engine::Impl::CommitWrite(const WriteChange& change) {
  std::vector<int64_t> rows;
  for (const auto& [class_id, values] : change.rows) {
    rows.push_back(class_id - parts_.backend->config().class_start);
  }
  BeforeChange(rows);
  if (!ledger_.Contains(change.write.write_id)) {
    if (absl::Status status = WriteRows(change.rows); !status.ok()) return status;
    ledger_.AddWrite(change.write);
  }
  Arrive(NextPosition(position_.step));
  return absl::OkStatus();
}

absl::Status Engine::Impl::Run(uint64_t sequence, const RunOperation& operation) {
  if (absl::Status status = LogEverywhere(RunChange{operation.run}); !status.ok()) return status;
  if (absl::Status status = ChangeRun(operation.run); !status.ok()) return status;
  parts_.control->OperationDone(sequence, absl::OkStatus(), 0);
  return absl::OkStatus();
}

absl::Status Engine::Impl::ChangeRun(const RunState& run) {
  ledger_.run = run;
  parts_.assembler->SetRun(run);
  Arrive(NextPosition(position_.step));
  return absl::OkStatus();
}

absl::Status Engine::Impl::LogEverywhere(Change change) {
  log_.Append(NextPosition(position_.step), std::move(change));
  if (absl::Status status = log_.Wait(); !status.ok()) return status;
  if (!log_.on()) return absl::OkStatus();
  Exchange exchange(collective_.get(), options_.collective_timeout);
  ReachFaultPoint("exchange/change");
  const char here = 1;
  std::vector<char> everywhere(options_.num_shards);
  return exchange.GatherEqual(&here, everywhere.data(), sizeof(here));
}

absl::Status Engine::Impl::Run(uint64_t sequence, const CheckpointOperation& checkpoint) {
  StartCheckpoint(sequence, checkpoint.id, /*kept=*/false);
  return absl::OkStatus();
}

absl::Status Engine::Impl::Run(uint64_t sequence, const ReleaseOperation& release) {
  parts_.control->OperationDone(sequence, checkpointing_.Release(release.id), 0);
  return absl::OkStatus();
}

absl::Status Engine::Impl::WriteRows(const std::map<int64_t, std::vector<float>>& rows) {
  const int64_t start = parts_.backend->config().class_start;
  std::vector<float> together;
  for (auto it = rows.begin(); it != rows.end();) {
    // Neighbouring classes go together.
    const int64_t first = it->first;
    int64_t next = first;
    for (together.clear(); it != rows.end() && it->first == next; ++it, ++next) {
      together.insert(together.end(), it->second.begin(), it->second.end());
    }
    absl::Status status = parts_.backend->WriteRows(first - start, next - first, together.data(), nullptr);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void Engine::Impl::StartCheckpoint(uint64_t sequence, const CheckpointId& id, bool kept) {
  const absl::Time start = absl::Now();
  progress_.SetActivity("checkpoint");
  FinishCheckpoint();
  Ledger ledger = ledger_;
  ledger.answers = parts_.assembler->AnsweredSlices(position_.step);
  const absl::Status status = checkpointing_.Start(sequence, id, kept, std::move(ledger));
  parts_.metrics->CheckpointStalled(absl::Now() - start);
  if (!status.ok()) parts_.control->OperationDone(sequence, status, 0);
}

void Engine::Impl::FinishCheckpoint() {
  if (!checkpointing_.is_writing()) return;
  const Checkpointing::Outcome outcome = checkpointing_.Finish();
  std::lock_guard lock(mutex_);
  queued_.checkpoint_written = false;
  // In another epoch the sequence would be somebody else's.
  if (state_ != State::kEpoch || queued_.start) return;
  parts_.control->OperationDone(outcome.sequence, outcome.status, outcome.bytes);
}

void Engine::Impl::BeforeChange(absl::Span<const int64_t> rows) {
  ForgetMemory();
  const bool is_writing = checkpointing_.is_writing();
  const absl::Duration took = checkpointing_.BeforeChange(rows);
  if (is_writing) parts_.metrics->CheckpointStalled(took);
}

// ---- The public face.

Engine::Engine(EngineOptions options, EngineParts parts)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(parts))) {}
Engine::~Engine() = default;

void Engine::StartEpoch(const EpochPlan& plan, Rendezvous rendezvous) {
  impl_->StartEpoch(plan, std::move(rendezvous));
}
void Engine::EndEpoch(const absl::Status& status) { impl_->EndEpoch(status); }
void Engine::Enqueue(uint64_t sequence, Operation operation) {
  impl_->Enqueue(sequence, std::move(operation));
}
void Engine::CheckpointCommitted(const CheckpointId& id) { impl_->CheckpointCommitted(id); }

uint64_t Engine::AddEvaluate(std::vector<float> features, std::vector<int64_t> labels,
                             std::function<void(absl::StatusOr<EvaluateResult>)> done) {
  return impl_->queries().Add({std::move(features), std::move(labels)}, std::move(done));
}
uint64_t Engine::AddNearest(std::vector<float> queries,
                            std::function<void(absl::StatusOr<NearestResult>)> done) {
  return impl_->queries().Add({std::move(queries), {}}, std::move(done));
}
void Engine::FailQuery(uint64_t query, const absl::Status& status) { impl_->queries().Fail(query, status); }

void Engine::ReadCentres(std::vector<int64_t> class_ids, bool with_momentum,
                         std::function<void(absl::StatusOr<CentreRows>)> done) {
  impl_->ReadCentres(std::move(class_ids), with_momentum, std::move(done));
}
EngineProgress Engine::progress() const { return impl_->progress(); }
std::optional<Position> Engine::memory() const { return impl_->memory(); }

}  // namespace ccs
