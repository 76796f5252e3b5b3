#include "server/shard.h"

#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/cluster/cluster_service.h"
#include "server/cluster/collective.h"
#include "server/cluster/coordinator.h"
#include "server/cluster/coordinator_ticker.h"
#include "server/cluster/grpc_connector.h"
#include "server/cluster/local_connector.h"
#include "server/cluster/member.h"
#include "server/engine/engine.h"
#include "server/engine/layout.h"
#include "server/memory_admission.h"
#include "server/metrics/metrics.h"
#include "server/model_spec_proto.h"
#include "server/replay_samples.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/rpc_server.h"
#include "server/rpc/training_service.h"
#include "server/stop_signals.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/step_log.h"
#include "server/version.h"

namespace ccs {

// In the order of construction; what comes later uses what comes earlier.
struct Shard::Parts {
  explicit Parts(const ServerOptions& o) : options(o) {}

  const ServerOptions options;
  v1::ModelSpec spec_message;
  ModelSpec spec;
  std::string canonical_spec;
  std::unique_ptr<kernels::ShardBackend> backend;
  std::optional<Metrics> metrics;

  std::unique_ptr<Coordinator> coordinator;  // on rank 0
  std::unique_ptr<CoordinatorTicker> ticker;
  std::unique_ptr<ClusterService> cluster;
  std::optional<TrainingService> training;
  std::optional<AdminService> admin;
  std::unique_ptr<RpcServer> server;
  std::string address;

  std::unique_ptr<CheckpointStore> checkpoints;  // with a --checkpoint_dir
  std::unique_ptr<CheckpointMirror> mirror;      // with a --checkpoint_mirror
  std::unique_ptr<StepLog> log;                  // the same, unless --step_log=off
  std::optional<StagedWrites> staged_writes;
  std::unique_ptr<ControlConnector> connector;
  std::optional<Member> member;
  std::optional<StepAssembler> assembler;
  std::optional<Engine> engine;

  bool last_health = false;

  absl::Status ReadSpec();
  absl::Status MakeBackend();
  absl::Status MakeMetrics();
  void MakeCoordinator();
  absl::Status Listen();
  void MakeEngine();
  absl::Status Join();
  MemberOptions MakeMemberOptions() const;
  ServiceContext MakeServiceContext();
  absl::Status OpenStorage();
  absl::Status OpenLog();
  bool keeps_step_log() const { return !options.checkpoint_dir.empty() && options.step_log == "sync"; }
  int64_t max_message_bytes() const;
};

namespace {

constexpr absl::Duration kHealthPeriod = absl::Milliseconds(100);
// For answers that are on their way when the server closes.
constexpr absl::Duration kClosingTime = absl::Seconds(2);
constexpr int64_t kLeastMessageBytes = int64_t{16} << 20;
constexpr int64_t kMessageOverheadBytes = int64_t{64} << 10;

std::string HeadName(const kernels::Margin& margin) {
  if (margin == kernels::Margin{}) return "normface";
  if (margin == kernels::Margin{.m3 = margin.m3}) return "cosface";
  if (margin == kernels::Margin{.m2 = margin.m2}) return "arcface";
  return "combined";
}

ResumePolicy ParseResume(const std::string& resume) {
  ResumePolicy policy;
  if (absl::SimpleAtoi(resume, &policy.step)) {
    policy.kind = ResumePolicy::Kind::kStep;
  } else if (resume == "none") {
    policy.kind = ResumePolicy::Kind::kNone;
  }
  return policy;
}

uint64_t RandomNonce() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // 0 would mean none
}

}  // namespace

absl::Status Shard::Parts::ReadSpec() {
  absl::StatusOr<v1::ModelSpec> message = ReadModelSpec(options.model);
  if (!message.ok()) return message.status();
  spec_message = *std::move(message);
  absl::StatusOr<ModelSpec> plain = ModelSpecFromProto(spec_message);
  if (!plain.ok()) return plain.status();
  spec = *plain;
  absl::StatusOr<std::string> canonical = CanonicalSpec(spec_message);
  if (!canonical.ok()) return canonical.status();
  canonical_spec = *std::move(canonical);
  return absl::OkStatus();
}

absl::Status Shard::Parts::MakeBackend() {
  const ClassRange own = ClassRangeOf(spec.num_classes, options.num_shards, options.rank);
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const kernels::ShardConfig config{.class_start = own.start,
                                    .num_local = own.count,
                                    .dim = spec.dim,
                                    .num_shards = options.num_shards,
                                    .max_batch = spec.max_batch,
                                    .seed = spec.seed,
                                    .normalise_features = spec.normalise_features,
                                    .precision = spec.precision,
                                    .kept_logits_bytes = spec.kept_logits_bytes,
                                    .threads = options.threads > 0 ? options.threads : processors};
  kernels::MemoryNeed need = kernels::CpuMemoryNeed(config);
  if (!options.checkpoint_dir.empty()) {
    need.workspace_bytes += std::min(options.checkpoint_staging_bytes, need.state_bytes);
  }
  absl::Status admitted = AdmitMemory(need, AvailableMemory(), options.memory_limit_bytes);
  if (!admitted.ok()) return admitted;
  absl::StatusOr<std::unique_ptr<kernels::ShardBackend>> made = kernels::MakeCpuBackend(config);
  if (!made.ok()) return made.status();
  backend = *std::move(made);
  const kernels::MemoryNeed memory = backend->memory();
  spdlog::info("classes [{}, {}) of {}, dim {}, on {}; {} MiB for the state, {} MiB for the workspace",
               own.start, own.start + own.count, spec.num_classes, spec.dim, backend->device_name(),
               memory.state_bytes >> 20, memory.workspace_bytes >> 20);
  return absl::OkStatus();
}

absl::Status Shard::Parts::MakeMetrics() {
  metrics.emplace(BuildAndSpec{.version = kVersion,
                               .device = backend->device_name(),
                               .rank = options.rank,
                               .num_shards = options.num_shards,
                               .num_classes = spec.num_classes,
                               .dim = spec.dim,
                               .sample_rate = spec.sample_rate,
                               .head = HeadName(spec.head.margin)});
  metrics->SetMemory(backend->memory().state_bytes, backend->memory().workspace_bytes);
  if (options.metrics == "off") return absl::OkStatus();
  const absl::StatusOr<int> port = metrics->Serve(options.metrics);
  if (!port.ok()) return port.status();
  spdlog::info("metrics are on http://{}:{}/metrics", ParseHostPort(options.metrics)->host, *port);
  return absl::OkStatus();
}

void Shard::Parts::MakeCoordinator() {
  coordinator = std::make_unique<Coordinator>(
      CoordinatorOptions{.num_shards = options.num_shards,
                         .spec = spec_message,
                         .version = kVersion,
                         .resume = ParseResume(options.resume),
                         .has_checkpoint_dir = !options.checkpoint_dir.empty(),
                         .step_log = keeps_step_log(),
                         .checkpoint_interval_steps = options.checkpoint_every,
                         .step_timeout = absl::Milliseconds(options.step_timeout_ms),
                         .keep_checkpoints = options.keep_checkpoints,
                         .heartbeat_timeout = absl::Milliseconds(options.heartbeat_timeout_ms),
                         .run_lease = absl::Milliseconds(options.run_lease_ms)});
  ticker = std::make_unique<CoordinatorTicker>(coordinator.get());
  cluster = std::make_unique<ClusterService>(coordinator.get());
}

absl::Status Shard::Parts::Listen() {
  training.emplace(&*metrics);
  admin.emplace(&*metrics);
  std::vector<grpc::Service*> services = {&*training, &*admin};
  if (cluster != nullptr) services.push_back(cluster.get());
  absl::StatusOr<std::unique_ptr<RpcServer>> started =
      RpcServer::Start({.listen = options.listen, .max_message_bytes = max_message_bytes()}, services);
  if (!started.ok()) return started.status();
  server = *std::move(started);
  const std::string listening = absl::StrCat(ParseHostPort(options.listen)->host, ":", server->port());
  address = options.advertise.empty() ? listening : options.advertise;
  spdlog::info("listening on {}, reached at {}", listening, address);
  return absl::OkStatus();
}

int64_t Shard::Parts::max_message_bytes() const {
  if (options.max_message_bytes > 0) return options.max_message_bytes;
  const int64_t row_bytes = int64_t{4} * spec.dim + 8;
  return std::clamp<int64_t>(spec.max_batch * row_bytes + kMessageOverheadBytes, kLeastMessageBytes,
                             std::numeric_limits<int>::max());
}

MemberOptions Shard::Parts::MakeMemberOptions() const {
  MemberOptions result;
  result.registration.set_rank(options.rank);
  result.registration.set_num_shards(options.num_shards);
  result.registration.set_address(address);
  result.registration.set_process_nonce(RandomNonce());
  *result.registration.mutable_spec() = spec_message;
  result.registration.set_version(kVersion);
  result.registration.set_step_log(keeps_step_log());
  result.registration.set_device(backend->device_name());
  result.registration.set_state_bytes(backend->memory().state_bytes);
  result.registration.set_workspace_bytes(backend->memory().workspace_bytes);
  result.heartbeat_interval = absl::Milliseconds(options.heartbeat_interval_ms);
  result.heartbeat_timeout = absl::Milliseconds(options.heartbeat_timeout_ms);
  result.drain_timeout = absl::Milliseconds(options.drain_timeout_ms);
  return result;
}

ServiceContext Shard::Parts::MakeServiceContext() {
  return {.rules = {.spec = spec,
                    .rank = options.rank,
                    .num_shards = options.num_shards,
                    .has_checkpoint_dir = !options.checkpoint_dir.empty(),
                    .max_message_bytes = max_message_bytes()},
          .spec = spec_message,
          .version = kVersion,
          .address = address,
          .device = backend->device_name(),
          .memory = backend->memory(),
          .member = &*member,
          .engine = &*engine,
          .assembler = &*assembler,
          .staged_writes = &*staged_writes};
}

void Shard::Parts::MakeEngine() {
  CollectiveOptions collective;
  collective.rank = options.rank;
  collective.size = options.num_shards;
  collective.host = options.collective_host;
  if (collective.host.empty()) collective.host = ParseHostPort(address)->host;
  EngineOptions engine_options;
  engine_options.rank = options.rank;
  engine_options.num_shards = options.num_shards;
  engine_options.spec = spec;
  engine_options.canonical_spec = canonical_spec;
  engine_options.collective_timeout = absl::Milliseconds(options.collective_timeout_ms);
  engine_options.connect_timeout =
      absl::Milliseconds(std::min(options.collective_timeout_ms, options.heartbeat_timeout_ms));
  engine_options.keep_checkpoints = options.keep_checkpoints;
  engine_options.checkpoint_staging_bytes = options.checkpoint_staging_bytes;
  if (!options.replay_samples.empty()) {
    engine_options.sampled_rows = ReplaySamples(options.replay_samples, options.rank);
  }
  engine.emplace(
      std::move(engine_options),
      EngineParts{.backend = backend.get(),
                  .assembler = &*assembler,
                  .staged_writes = &*staged_writes,
                  .checkpoints = checkpoints.get(),
                  .mirror = mirror.get(),
                  .log = log.get(),
                  .control = &*member,
                  .metrics = &*metrics,
                  .make_collective = [collective](absl::Time deadline, const Rendezvous& rendezvous) {
                    CollectiveOptions with_deadline = collective;
                    with_deadline.deadline = deadline;
                    return MakeCpuCollective(with_deadline, rendezvous);
                  }});
}

absl::Status Shard::Parts::OpenStorage() {
  if (options.checkpoint_dir.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<CheckpointStore>> opened = OpenCheckpointStore(
      options.checkpoint_dir, options.rank, options.num_shards, options.checkpoint_mirror);
  if (!opened.ok()) return opened.status();
  checkpoints = *std::move(opened);
  if (!options.checkpoint_mirror.empty()) {
    auto opened_mirror = CheckpointMirror::Open(
        {.checkpoint_dir = options.checkpoint_dir,
         .mirror_dir = options.checkpoint_mirror,
         .rank = options.rank,
         .num_shards = options.num_shards,
         .keep = options.keep_checkpoints,
         .on_copied = [this](const absl::Status& status) { metrics->CheckpointMirrored(status.ok()); }});
    if (!opened_mirror.ok()) return opened_mirror.status();
    mirror = *std::move(opened_mirror);
  }
  // Rank 0's --resume is the cluster's. Before there is a log, whose folder would count as something of its
  // own.
  if (options.rank == 0 && options.resume != "none") {
    absl::Status resumable = checkpoints->CheckResumable();
    if (!resumable.ok()) {
      return absl::Status(resumable.code(),
                          absl::StrCat(resumable.message(), "; bring all folders under --checkpoint_dir=",
                                       options.checkpoint_dir, ", or begin anew with --resume=none"));
    }
  }
  return keeps_step_log() ? OpenLog() : absl::OkStatus();
}

// A damaged log costs the steps since the last checkpoint, not the shard.
absl::Status Shard::Parts::OpenLog() {
  auto opened = OpenStepLog(options.checkpoint_dir, options.rank, options.num_shards);
  if (absl::IsDataLoss(opened.status())) {
    const auto aside = SetStepLogAside(options.checkpoint_dir, options.rank, options.num_shards);
    if (!aside.ok()) return aside.status();
    spdlog::error("the step log is damaged and set aside as {}: {}", aside->string(),
                  opened.status().ToString());
    opened = OpenStepLog(options.checkpoint_dir, options.rank, options.num_shards);
  }
  if (!opened.ok()) return opened.status();
  log = *std::move(opened);
  return absl::OkStatus();
}

absl::Status Shard::Parts::Join() {
  if (absl::Status status = OpenStorage(); !status.ok()) return status;
  staged_writes.emplace(spec.dim, options.max_staged_bytes);
  if (coordinator != nullptr) {
    connector = std::make_unique<LocalConnector>(coordinator.get());
  } else {
    connector = std::make_unique<GrpcConnector>(options.coordinator);
  }
  member.emplace(MakeMemberOptions(), connector.get());
  assembler.emplace(options.rank, options.num_shards, &*member);

  MakeEngine();
  member->SetParts({.engine = &*engine,
                    .assembler = &*assembler,
                    .staged_writes = &*staged_writes,
                    .checkpoints = checkpoints.get(),
                    .log = log.get(),
                    .metrics = &*metrics});
  const ServiceContext context = MakeServiceContext();
  training->Open(context);
  admin->Open(context);
  member->Start();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Shard>> Shard::Start(const ServerOptions& options) {
  auto parts = std::make_unique<Parts>(options);
  absl::Status status = parts->ReadSpec();
  if (status.ok()) status = parts->MakeBackend();
  if (status.ok()) status = parts->MakeMetrics();
  if (status.ok() && options.rank == 0) parts->MakeCoordinator();
  if (status.ok()) status = parts->Listen();
  if (status.ok()) status = parts->Join();
  if (!status.ok()) return status;
  return std::unique_ptr<Shard>(new Shard(std::move(parts)));
}

Shard::Shard(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Shard::~Shard() {
  // What waits is answered first, since the server cannot close before that.
  parts_->member->Stop();
  if (parts_->cluster != nullptr) parts_->cluster->Close();
  parts_->server->Shutdown(absl::Now() + kClosingTime);
}

absl::Status Shard::WaitUntilStopped() { return parts_->member->Wait(); }

absl::Status Shard::Drain(const std::string& reason) {
  parts_->server->SetServing(false);
  return parts_->member->Drain(reason);
}

void Shard::UpdateHealth() {
  const bool serves = serving();
  if (serves == parts_->last_health) return;
  parts_->last_health = serves;
  parts_->server->SetServing(serves);
}

bool Shard::serving() const { return parts_->member->serving(); }

const std::string& Shard::address() const { return parts_->address; }

int RunShard(const ServerOptions& options) {
  StopSignals signals;
  spdlog::info("ccs-server {}: shard {} of {}", kVersion, options.rank, options.num_shards);
  const absl::StatusOr<std::unique_ptr<Shard>> started = Shard::Start(options);
  if (!started.ok()) {
    spdlog::error("cannot start: {}", started.status().ToString());
    return kExitCannotServe;
  }
  Shard& shard = **started;
  std::future<absl::Status> stopped =
      std::async(std::launch::async, [&shard] { return shard.WaitUntilStopped(); });
  while (stopped.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    shard.UpdateHealth();
    const std::optional<int> signal = signals.Wait(kHealthPeriod);
    if (!signal) continue;
    spdlog::info("{}: stopping; a second signal stops at once", strsignal(*signal));
    signals.LetThrough();
    const absl::Status drained = shard.Drain(absl::StrCat("rank ", options.rank, " was asked to stop"));
    if (!drained.ok()) spdlog::error("stopped without the last checkpoint: {}", drained.ToString());
    return drained.ok() ? kExitClean : kExitNotDrained;
  }
  const absl::Status refused = stopped.get();
  spdlog::error("cannot go on: {}", refused.ToString());
  return kExitCannotServe;
}

}  // namespace ccs
