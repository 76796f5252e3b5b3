#include "server/engine/engine.h"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/checkpointing.h"
#include "server/engine/committed_writes.h"
#include "server/engine/exchange.h"
#include "server/engine/pending_queries.h"
#include "server/engine/progress_board.h"
#include "server/engine/query_runner.h"
#include "server/engine/step_runner.h"

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
    std::deque<Read> reads;
    std::deque<Ordered> operations;
    bool empty() const { return !prune && !start && reads.empty() && operations.empty(); }
  };

  void Loop();
  // For one round: all but the operations, of which it is one at most. mutex_ is held.
  Work TakeWork();
  // The engine's thread.
  void Do(Work work);
  void Form(const Start& start);
  absl::Status Connect(const Rendezvous& rendezvous);
  absl::Status LoadState(const EpochPlan& plan);
  void Serve(const Read& read);
  absl::StatusOr<CentreRows> ReadRows(const Read& read) const;
  void Execute(const Ordered& ordered);
  absl::Status Run(uint64_t sequence, const StepOperation& step);
  absl::Status Run(uint64_t sequence, const EvaluateOperation& evaluate);
  absl::Status Run(uint64_t sequence, const NearestOperation& nearest);
  absl::Status Run(uint64_t sequence, const CommitWriteOperation& write);
  absl::Status Run(uint64_t sequence, const CheckpointOperation& checkpoint);
  absl::Status WriteStagedRows(const std::string& write_id);
  void WriteCheckpoint(uint64_t sequence, const CheckpointId& id);
  // Drops what is queued, unless the epoch is being ended already. Returns whether this ended it.
  bool LeaveEpoch(const absl::Status& status);

  const EngineOptions options_;
  const EngineParts parts_;
  PendingQueries queries_;
  ProgressBoard progress_;

  // The engine's thread only.
  StepRunner steps_;
  QueryRunner query_runner_;
  Checkpointing checkpointing_;
  CommittedWrites committed_;
  Position position_;

  std::mutex mutex_;
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
      steps_(options_, parts_, &progress_),
      query_runner_(options_, parts_.backend, &queries_, &progress_),
      checkpointing_(options_, parts_, &progress_),
      thread_([this] { Loop(); }) {}

Engine::Impl::~Impl() {
  EndEpoch(absl::UnavailableError("the shard is stopping"));
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
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
  work.reads.swap(queued_.reads);
  if (!work.start && !queued_.operations.empty()) {
    work.operations.push_back(std::move(queued_.operations.front()));
    queued_.operations.pop_front();
  }
  return work;
}

void Engine::Impl::Do(Work work) {
  if (work.prune) checkpointing_.Prune(*work.prune);
  if (work.start) Form(*work.start);
  for (const Read& read : work.reads) Serve(read);
  for (const Ordered& ordered : work.operations) Execute(ordered);
}

void Engine::Impl::Form(const Start& start) {
  absl::Status status = Connect(start.rendezvous);
  if (status.ok()) status = LoadState(start.plan);
  if (!status.ok()) {
    if (!LeaveEpoch(status)) return;
    spdlog::error("epoch {} cannot start: {}", start.plan.epoch, status.ToString());
  }
  parts_.control->Formed(start.plan.epoch, status, committed_.writes());
}

absl::Status Engine::Impl::Connect(const Rendezvous& rendezvous) {
  progress_.SetActivity("connecting");
  auto collective = parts_.make_collective(absl::Now() + options_.collective_timeout, rendezvous);
  if (!collective.ok()) return collective.status();
  std::lock_guard lock(mutex_);
  if (state_ != State::kEpoch) return absl::UnavailableError("the epoch has ended while it formed");
  collective_ = *std::move(collective);
  return absl::OkStatus();
}

absl::Status Engine::Impl::LoadState(const EpochPlan& plan) {
  progress_.SetActivity("restoring");
  committed_ = {};
  absl::Status status = plan.checkpoint ? checkpointing_.Restore(*plan.checkpoint, &committed_)
                                        : parts_.backend->InitialiseRows();
  if (!status.ok()) return status;
  position_ = {plan.lineage, plan.step()};
  progress_.SetStep(position_.step);
  spdlog::info("epoch {}: lineage {} begins at step {} from {}", plan.epoch, plan.lineage, plan.step(),
               plan.checkpoint ? "checkpoint " + plan.checkpoint->ToString() : "initial weights");
  return absl::OkStatus();
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
  if (status.ok() || !LeaveEpoch(status)) return;
  spdlog::error("the epoch has failed after step {}: {}", position_.step, status.ToString());
  parts_.control->EpochFailed(status);
}

bool Engine::Impl::LeaveEpoch(const absl::Status& status) {
  std::deque<Read> reads;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kEpoch) return false;
    state_ = State::kFailed;
    queued_.operations.clear();
    reads.swap(queued_.reads);
    // The others need not wait for this shard.
    if (collective_ != nullptr) collective_->Abort();
  }
  for (const Read& read : reads) read.done(absl::UnavailableError(status.message()));
  return true;
}

absl::Status Engine::Impl::Run(uint64_t sequence, const StepOperation& step) {
  if (step.step != position_.step + 1) {
    return absl::InternalError(
        absl::StrCat("step ", step.step, " was started where step ", position_.step + 1, " is next"));
  }
  Exchange exchange(collective_.get(), options_.collective_timeout);
  const absl::StatusOr<StepObservation> seen = steps_.Run(step, &exchange);
  if (!seen.ok()) return seen.status();
  position_.step = step.step;
  progress_.SetStep(step.step);
  parts_.metrics->StepFinished(*seen);
  if (step.checkpoint) WriteCheckpoint(sequence, *step.checkpoint);
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
  if (!committed_.Contains(write.write_id)) {
    if (absl::Status status = WriteStagedRows(write.write_id); !status.ok()) return status;
    committed_.Add({write.write_id, write.rows});
    spdlog::info("write '{}' committed: {} centres over all shards", write.write_id, write.rows);
  }
  parts_.control->OperationDone(sequence, absl::OkStatus(), 0);
  return absl::OkStatus();
}

absl::Status Engine::Impl::Run(uint64_t sequence, const CheckpointOperation& checkpoint) {
  WriteCheckpoint(sequence, checkpoint.id);
  return absl::OkStatus();
}

absl::Status Engine::Impl::WriteStagedRows(const std::string& write_id) {
  const int64_t start = parts_.backend->config().class_start;
  const std::map<int64_t, std::vector<float>> staged = parts_.staged_writes->Take(write_id);
  std::vector<float> rows;
  for (auto it = staged.begin(); it != staged.end();) {
    // Neighbouring classes go together.
    const int64_t first = it->first;
    int64_t next = first;
    for (rows.clear(); it != staged.end() && it->first == next; ++it, ++next) {
      rows.insert(rows.end(), it->second.begin(), it->second.end());
    }
    absl::Status status = parts_.backend->WriteRows(first - start, next - first, rows.data(), nullptr);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void Engine::Impl::WriteCheckpoint(uint64_t sequence, const CheckpointId& id) {
  const absl::StatusOr<int64_t> bytes = checkpointing_.Write(id, committed_);
  parts_.control->OperationDone(sequence, bytes.status(), bytes.ok() ? *bytes : 0);
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

}  // namespace ccs
