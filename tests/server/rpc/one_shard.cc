#include "tests/server/rpc/one_shard.h"

#include "absl/time/clock.h"
#include "server/cluster/collective.h"
#include "server/model_spec_proto.h"

namespace ccs::testing {
namespace {

constexpr char kVersion[] = "test";

std::unique_ptr<kernels::ShardBackend> MakeBackend(const ModelSpec& spec) {
  return kernels::MakeCpuBackend({.class_start = 0,
                                  .num_local = spec.num_classes,
                                  .dim = spec.dim,
                                  .num_shards = 1,
                                  .max_batch = spec.max_batch,
                                  .seed = spec.seed,
                                  .normalise_features = spec.normalise_features,
                                  .precision = spec.precision,
                                  .kept_logits_bytes = spec.kept_logits_bytes,
                                  .threads = 1})
      .value();
}

std::unique_ptr<CheckpointStore> OpenStore(const std::filesystem::path& directory) {
  return directory.empty() ? nullptr : OpenCheckpointStore(directory, 0, 1).value();
}

MemberOptions MakeMemberOptions(const OneShardOptions& options) {
  MemberOptions result;
  result.registration.set_num_shards(1);
  result.registration.set_address("in-process");
  result.registration.set_process_nonce(1);
  *result.registration.mutable_spec() = options.spec;
  result.registration.set_version(kVersion);
  return result;
}

EngineParts MakeEngineParts(kernels::ShardBackend* backend, StepAssembler* assembler,
                            StagedWrites* staged_writes, CheckpointStore* checkpoints, Member* member,
                            Metrics* metrics) {
  return {.backend = backend,
          .assembler = assembler,
          .staged_writes = staged_writes,
          .checkpoints = checkpoints,
          .control = member,
          .metrics = metrics,
          .make_collective = [](absl::Time deadline, const Rendezvous& rendezvous) {
            return MakeCpuCollective({.rank = 0, .size = 1, .host = "", .deadline = deadline}, rendezvous);
          }};
}

}  // namespace

OneShard::OneShard(const OneShardOptions& options)
    : spec_(ModelSpecFromProto(options.spec).value()),
      metrics_({}),
      backend_(MakeBackend(spec_)),
      coordinator_({.num_shards = 1,
                    .spec = options.spec,
                    .version = kVersion,
                    .resume = {},
                    .has_checkpoint_dir = !options.checkpoint_dir.empty()}),
      ticker_(&coordinator_),
      connector_(&coordinator_),
      checkpoints_(OpenStore(options.checkpoint_dir)),
      staged_writes_(spec_.dim, 4096),
      member_(MakeMemberOptions(options), &connector_),
      assembler_(0, 1, &member_),
      engine_({.spec = spec_, .canonical_spec = CanonicalSpec(options.spec).value(), .sampled_rows = nullptr},
              MakeEngineParts(backend_.get(), &assembler_, &staged_writes_, checkpoints_.get(), &member_,
                              &metrics_)),
      context_({.rules = {.spec = spec_,
                          .has_checkpoint_dir = !options.checkpoint_dir.empty(),
                          .max_message_bytes = 1 << 20},
                .spec = options.spec,
                .version = kVersion,
                .address = "in-process",
                .device = backend_->device_name(),
                .memory = backend_->memory(),
                .member = &member_,
                .engine = &engine_,
                .assembler = &assembler_,
                .staged_writes = &staged_writes_}),
      server_(RpcServer::Start({}, {&training_, &admin_}).value()),
      channel_(server_->InProcessChannel()),
      training_stub_(v1::Training::NewStub(channel_)),
      admin_stub_(v1::Admin::NewStub(channel_)) {}

OneShard::~OneShard() {
  member_.Stop();
  server_->Shutdown(absl::Now());
}

bool OneShard::Open() {
  member_.SetParts({.engine = &engine_,
                    .assembler = &assembler_,
                    .staged_writes = &staged_writes_,
                    .checkpoints = checkpoints_.get(),
                    .metrics = &metrics_});
  training_.Open(context_);
  admin_.Open(context_);
  member_.Start();
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!member_.serving() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  return member_.serving();
}

}  // namespace ccs::testing
