#include "tests/testing/in_process_cluster.h"

#include <spdlog/spdlog.h>

#include <bit>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/cluster/member.h"
#include "server/engine/layout.h"
#include "server/engine/slice_digest.h"
#include "server/model_spec_proto.h"

namespace ccs::testing {
namespace {

constexpr char kVersion[] = "test";
constexpr int64_t kStagedBytes = int64_t{1} << 20;

kernels::ShardConfig ConfigOf(const ModelSpec& spec, int rank, int num_shards) {
  const ClassRange range = ClassRangeOf(spec.num_classes, num_shards, rank);
  kernels::ShardConfig config;
  config.class_start = range.start;
  config.num_local = range.count;
  config.dim = spec.dim;
  config.num_shards = num_shards;
  config.max_batch = spec.max_batch;
  config.seed = spec.seed;
  config.normalise_features = spec.normalise_features;
  config.precision = spec.precision;
  config.kept_logits_bytes = spec.kept_logits_bytes;
  return config;
}

}  // namespace

// One shard server without its RPC layer.
struct InProcessCluster::Shard {
  Shard(InProcessCluster* cluster, int rank);
  ~Shard() { member->Stop(); }

  std::unique_ptr<kernels::ShardBackend> backend;
  std::shared_ptr<CheckpointStore> checkpoints;
  std::shared_ptr<StepLog> log;
  Metrics metrics{BuildAndSpec{}};
  StagedWrites staged_writes;
  std::unique_ptr<Member> member;
  std::unique_ptr<StepAssembler> assembler;
  std::unique_ptr<Engine> engine;
};

InProcessCluster::Shard::Shard(InProcessCluster* cluster, int rank)
    : staged_writes(cluster->spec_.dim, kStagedBytes) {
  const InProcessClusterOptions& options = cluster->options_;
  backend = kernels::MakeCpuBackend(ConfigOf(cluster->spec_, rank, options.num_shards)).value();
  if (options.open_checkpoints) checkpoints = options.open_checkpoints(rank);
  if (options.open_log) log = options.open_log(rank);
  MemberOptions member_options;
  member_options.registration.set_rank(rank);
  member_options.registration.set_num_shards(options.num_shards);
  member_options.registration.set_address(absl::StrCat("in-process:", rank));
  member_options.registration.set_process_nonce(absl::GetCurrentTimeNanos());
  *member_options.registration.mutable_spec() = options.spec;
  member_options.registration.set_version(kVersion);
  member_options.registration.set_step_log(log != nullptr);
  member_options.heartbeat_interval = absl::Milliseconds(100);
  member = std::make_unique<Member>(std::move(member_options), cluster->connector_.get());
  assembler = std::make_unique<StepAssembler>(rank, options.num_shards, member.get());

  EngineOptions engine_options;
  engine_options.rank = rank;
  engine_options.num_shards = options.num_shards;
  engine_options.spec = cluster->spec_;
  engine_options.canonical_spec = cluster->canonical_spec_;
  if (options.sampled_rows) {
    engine_options.sampled_rows = [&options, rank](int64_t step) { return options.sampled_rows(rank, step); };
  }
  EngineParts parts;
  parts.backend = backend.get();
  parts.assembler = assembler.get();
  parts.staged_writes = &staged_writes;
  parts.checkpoints = checkpoints.get();
  parts.log = log.get();
  parts.control = member.get();
  parts.metrics = &metrics;
  parts.make_collective = [cluster, rank](absl::Time deadline, const Rendezvous& rendezvous) {
    return cluster->Meet(rank, deadline, rendezvous);
  };
  engine = std::make_unique<Engine>(std::move(engine_options), std::move(parts));
  member->SetParts({engine.get(), assembler.get(), &staged_writes, checkpoints.get(), log.get(), &metrics});
  member->Start();
}

InProcessCluster::InProcessCluster(InProcessClusterOptions options)
    : options_(std::move(options)),
      canonical_spec_(CanonicalSpec(options_.spec).value()),
      spec_(ModelSpecFromProto(options_.spec).value()),
      shards_(options_.num_shards) {
  // Makes the logger before there are threads, as a server's main does.
  spdlog::set_level(spdlog::level::err);
  CoordinatorOptions coordinator;
  coordinator.num_shards = options_.num_shards;
  coordinator.spec = options_.spec;
  coordinator.version = kVersion;
  coordinator.resume = options_.resume;
  coordinator.has_checkpoint_dir = options_.open_checkpoints != nullptr;
  coordinator.step_log = options_.open_log != nullptr;
  coordinator.checkpoint_interval_steps = options_.checkpoint_interval_steps;
  coordinator.step_timeout = options_.step_timeout;
  coordinator_ = std::make_unique<Coordinator>(std::move(coordinator));
  connector_ = std::make_unique<LocalConnector>(coordinator_.get());
  ticker_ = std::make_unique<CoordinatorTicker>(coordinator_.get());
  for (int rank = 0; rank < options_.num_shards; ++rank) Start(rank);
}

InProcessCluster::~InProcessCluster() = default;

absl::StatusOr<std::unique_ptr<Collective>> InProcessCluster::Meet(int rank, absl::Time deadline,
                                                                   const Rendezvous& rendezvous) {
  std::string own;
  {
    std::lock_guard lock(mutex_);
    own = absl::StrCat(++meetings_);
  }
  const absl::StatusOr<std::vector<std::string>> all = rendezvous(own, deadline);
  if (!all.ok()) return all.status();
  std::lock_guard lock(mutex_);
  Group& group = groups_[absl::StrJoin(*all, " ")];
  if (group.empty()) {
    group = MakeInProcessCollectives(options_.num_shards, [this](int failing, int call) {
      CollectiveFaultHook fault;
      {
        std::lock_guard fault_lock(mutex_);
        fault = fault_;
      }
      return fault ? fault(failing, call) : absl::OkStatus();
    });
  }
  return std::move(group[rank]);
}

uint64_t InProcessCluster::epoch() {
  v1::Propose proposal;
  proposal.mutable_status();
  const absl::StatusOr<v1::Result> result = Propose(0, std::move(proposal));
  return result.ok() ? result->cluster().epoch() : 0;
}

absl::Status InProcessCluster::WaitServing(uint64_t above_epoch) {
  const absl::Time give_up = absl::Now() + absl::Seconds(40);
  std::string states;
  do {
    states.clear();
    for (const auto& shard : shards_) {
      if (shard == nullptr) return absl::FailedPreconditionError("a shard is dead");
      if (!shard->member->serving()) absl::StrAppend(&states, shard->member->state(), "; ");
    }
    if (states.empty() && epoch() <= above_epoch) states = "still in the epoch before";
    if (states.empty()) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  } while (absl::Now() < give_up);
  return absl::DeadlineExceededError(states);
}

void InProcessCluster::Kill(int rank) { shards_[rank].reset(); }

void InProcessCluster::Start(int rank) { shards_[rank] = std::make_unique<Shard>(this, rank); }

void InProcessCluster::SetCollectiveFault(CollectiveFaultHook hook) {
  std::lock_guard lock(mutex_);
  fault_ = std::move(hook);
}

absl::StatusOr<v1::Result> InProcessCluster::Propose(int rank, v1::Propose proposal) {
  Pending<v1::Result> result;
  shards_[rank]->member->Propose(std::move(proposal), result.done());
  return result.Get();
}

absl::StatusOr<v1::OpenRunReply> InProcessCluster::OpenRun(int rank, const std::string& run_id, int trainer,
                                                           int num_trainers, uint64_t start_nonce) {
  v1::Propose proposal;
  proposal.mutable_open_run()->set_run_id(run_id);
  proposal.mutable_open_run()->set_trainer_rank(trainer);
  proposal.mutable_open_run()->set_num_trainers(num_trainers);
  proposal.mutable_open_run()->set_start_nonce(start_nonce);
  absl::StatusOr<v1::Result> result = Propose(rank, std::move(proposal));
  if (!result.ok()) return result.status();
  return result->open_run();
}

PendingSlice InProcessCluster::Submit(int rank, Slice slice) {
  slice.digest = SliceDigest(slice);
  PendingSlice reply;
  shards_[rank]->assembler->Submit(std::move(slice), reply.done());
  return reply;
}

absl::StatusOr<EvaluateResult> InProcessCluster::Evaluate(int rank, std::vector<float> features,
                                                          std::vector<int64_t> labels,
                                                          std::optional<double> sample_rate) {
  Pending<EvaluateResult> result;
  v1::Propose proposal;
  v1::EvaluateOp* operation = proposal.mutable_evaluate();
  operation->set_rows(static_cast<int>(labels.size()));
  if (sample_rate) operation->set_sample_rate(*sample_rate);
  operation->set_origin_rank(rank);
  Engine& engine = *shards_[rank]->engine;
  operation->set_query(engine.AddEvaluate(std::move(features), std::move(labels), result.done()));
  const uint64_t query = operation->query();
  if (const auto ordered = Propose(rank, std::move(proposal)); !ordered.ok()) {
    engine.FailQuery(query, ordered.status());
  }
  return result.Get();
}

absl::StatusOr<NearestResult> InProcessCluster::Nearest(int rank, std::vector<float> queries, int k) {
  Pending<NearestResult> result;
  v1::Propose proposal;
  v1::NearestOp* operation = proposal.mutable_nearest();
  operation->set_rows(static_cast<int>(queries.size()) / spec_.dim);
  operation->set_k(k);
  operation->set_origin_rank(rank);
  Engine& engine = *shards_[rank]->engine;
  operation->set_query(engine.AddNearest(std::move(queries), result.done()));
  const uint64_t query = operation->query();
  if (const auto ordered = Propose(rank, std::move(proposal)); !ordered.ok()) {
    engine.FailQuery(query, ordered.status());
  }
  return result.Get();
}

int InProcessCluster::OwnerOf(int64_t class_id) const {
  for (int rank = 0; rank < options_.num_shards; ++rank) {
    if (ClassRangeOf(spec_.num_classes, options_.num_shards, rank).contains(class_id)) return rank;
  }
  return 0;
}

absl::StatusOr<CentreRows> InProcessCluster::ReadCentres(const std::vector<int64_t>& class_ids) {
  CentreRows all;
  for (const int64_t id : class_ids) {
    Pending<CentreRows> row;
    shards_[OwnerOf(id)]->engine->ReadCentres({id}, true, row.done());
    const absl::StatusOr<CentreRows> got = row.Get();
    if (!got.ok()) return got;
    all.centres.insert(all.centres.end(), got->centres.begin(), got->centres.end());
    all.momentum.insert(all.momentum.end(), got->momentum.begin(), got->momentum.end());
    all.position = got->position;
  }
  return all;
}

absl::StatusOr<CentreRows> InProcessCluster::ReadAllCentres() {
  std::vector<int64_t> ids(spec_.num_classes);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  return ReadCentres(ids);
}

absl::Status InProcessCluster::StageCentres(const std::string& write_id,
                                            const std::vector<int64_t>& class_ids,
                                            const std::vector<float>& centres) {
  for (size_t i = 0; i < class_ids.size(); ++i) {
    Shard& owner = *shards_[OwnerOf(class_ids[i])];
    const absl::StatusOr<int64_t> staged = owner.staged_writes.Add(
        write_id, {class_ids[i]}, absl::MakeConstSpan(centres).subspan(i * spec_.dim, spec_.dim));
    if (!staged.ok()) return staged.status();
    owner.member->WriteStaged(write_id, *staged);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Result> InProcessCluster::CommitCentres(int rank, const std::string& write_id,
                                                           int64_t rows) {
  v1::Propose proposal;
  proposal.mutable_commit_write()->set_write_id(write_id);
  proposal.mutable_commit_write()->set_rows(rows);
  return Propose(rank, std::move(proposal));
}

absl::StatusOr<v1::Result> InProcessCluster::Checkpoint(int rank) {
  v1::Propose proposal;
  proposal.mutable_checkpoint();
  return Propose(rank, std::move(proposal));
}

absl::Status InProcessCluster::Drain(int rank) { return shards_[rank]->member->Drain("the test says so"); }

Position InProcessCluster::position(int rank) const { return shards_[rank]->assembler->position(); }

// ---------------------------------------------------------------- trainers

InProcessTrainers::InProcessTrainers(InProcessCluster* cluster, int num_trainers, int dim, std::string run_id)
    : cluster_(cluster),
      num_trainers_(num_trainers),
      dim_(dim),
      run_id_(std::move(run_id)),
      incarnations_(num_trainers) {}

absl::Status InProcessTrainers::Open(int trainer) {
  const uint64_t nonce = 1000 * ++starts_ + trainer;
  const auto reply =
      cluster_->OpenRun(trainer % cluster_->num_shards(), run_id_, trainer, num_trainers_, nonce);
  if (!reply.ok()) return reply.status();
  incarnations_[trainer] = reply->incarnation();
  position_ = {reply->position().lineage(), reply->position().step()};
  return absl::OkStatus();
}

absl::Status InProcessTrainers::Open() {
  for (int trainer = 0; trainer < num_trainers_; ++trainer) {
    if (absl::Status status = Open(trainer); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::pair<int, Slice>> InProcessTrainers::Slices(int trainer, const TrainerBatch& batch,
                                                             const StepParams& params) const {
  std::vector<int> homes;
  for (int rank = 0; rank < cluster_->num_shards(); ++rank) {
    if (IsHome(rank, cluster_->num_shards(), trainer, num_trainers_)) homes.push_back(rank);
  }
  std::vector<std::pair<int, Slice>> slices;
  for (size_t part = 0; part < homes.size(); ++part) {
    // In order and as evenly as possible: what ClassRangeOf does to classes.
    const ClassRange rows = ClassRangeOf(static_cast<int64_t>(batch.labels.size()),
                                         static_cast<int>(homes.size()), static_cast<int>(part));
    Slice slice;
    slice.run_id = run_id_;
    slice.incarnation = incarnations_[trainer];
    slice.lineage = position_.lineage;
    slice.trainer_rank = trainer;
    slice.step = position_.step + 1;
    slice.params = params;
    slice.features.assign(batch.features.begin() + rows.start * dim_,
                          batch.features.begin() + (rows.start + rows.count) * dim_);
    slice.labels.assign(batch.labels.begin() + rows.start, batch.labels.begin() + rows.start + rows.count);
    slice.deadline = absl::Now() + wait_;
    slices.emplace_back(homes[part], std::move(slice));
  }
  return slices;
}

std::vector<PendingSlice> InProcessTrainers::Send(int trainer, const TrainerBatch& batch,
                                                  const StepParams& params) {
  std::vector<PendingSlice> pending;
  for (auto& [home, slice] : Slices(trainer, batch, params)) {
    pending.push_back(cluster_->Submit(home, std::move(slice)));
  }
  return pending;
}

absl::StatusOr<TrainerReply> InProcessTrainers::Receive(std::vector<PendingSlice> slices) {
  TrainerReply reply;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto part = slices[i].Get();
    if (!part.ok()) return part.status();
    if (i > 0 && std::bit_cast<uint64_t>(reply.loss) != std::bit_cast<uint64_t>((*part)->loss)) {
      return absl::InternalError(absl::StrCat("losses differ: ", reply.loss, " and ", (*part)->loss));
    }
    reply.loss = (*part)->loss;
    reply.feature_grad.insert(reply.feature_grad.end(), (*part)->feature_grad.begin(),
                              (*part)->feature_grad.end());
  }
  return reply;
}

std::vector<absl::StatusOr<TrainerReply>> InProcessTrainers::Step(const std::vector<TrainerBatch>& batches,
                                                                  const StepParams& params) {
  std::vector<std::vector<PendingSlice>> pending;
  for (int trainer = 0; trainer < num_trainers_; ++trainer)
    pending.push_back(Send(trainer, batches[trainer], params));
  std::vector<absl::StatusOr<TrainerReply>> replies;
  bool ok = true;
  for (auto& slices : pending) {
    replies.push_back(Receive(std::move(slices)));
    ok = ok && replies.back().ok();
  }
  if (ok) ++position_.step;
  return replies;
}

}  // namespace ccs::testing
