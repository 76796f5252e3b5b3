#include "server/rpc/admin_service.h"

#include <utility>

#include "server/engine/layout.h"

namespace ccs {
namespace {

using CallPtr = std::shared_ptr<Call>;

// What this shard can say alone.
v1::StatusReply OwnStatus(const ServiceContext& shard) {
  const EngineProgress progress = shard.engine->progress();
  const Position position = shard.assembler->position();
  const ClassRange own = ClassRangeOf(shard.rules.spec.num_classes, shard.rules.num_shards, shard.rules.rank);

  v1::StatusReply reply;
  reply.set_state(v1::FORMING);
  reply.set_state_detail(shard.member->state());
  reply.mutable_position()->set_lineage(position.lineage);
  reply.mutable_position()->set_step(position.step);
  *reply.mutable_spec() = shard.spec;
  reply.set_loss(progress.loss);
  reply.set_version(shard.version);
  v1::ShardStatus* status = reply.add_shards();
  status->mutable_info()->set_rank(shard.rules.rank);
  status->mutable_info()->set_address(shard.address);
  status->mutable_info()->set_class_start(own.start);
  status->mutable_info()->set_num_classes(own.count);
  status->set_device(shard.device);
  status->set_step(progress.step);
  status->set_state_bytes(shard.memory.state_bytes);
  status->set_workspace_bytes(shard.memory.workspace_bytes);
  status->set_activity(progress.activity);
  return reply;
}

}  // namespace

void AdminService::Open(const ServiceContext& context) {
  context_ = std::make_unique<const ServiceContext>(context);
  runner_.Open(context_.get());
}

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                               v1::StatusReply* reply) {
  return runner_.Run(context, "Status", [&](const CallPtr& call, const ServiceContext& shard) {
    v1::Propose proposal;
    proposal.mutable_status();
    shard.member->Propose(std::move(proposal), [call, &shard, reply](absl::StatusOr<v1::Result> result) {
      *reply = result.ok() ? std::move(*result->mutable_cluster()) : OwnStatus(shard);
      call->Finish(absl::OkStatus());
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::ListCheckpoints(grpc::CallbackServerContext* context,
                                                        const v1::ListCheckpointsRequest*,
                                                        v1::ListCheckpointsReply* reply) {
  return runner_.Run(context, "ListCheckpoints", [&](const CallPtr& call, const ServiceContext& shard) {
    v1::Propose proposal;
    proposal.mutable_list_checkpoints();
    shard.member->Propose(std::move(proposal), [call, reply](absl::StatusOr<v1::Result> result) {
      if (result.ok()) *reply = std::move(*result->mutable_checkpoints());
      call->Finish(result.status());
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Checkpoint(grpc::CallbackServerContext* context,
                                                   const v1::CheckpointRequest*, v1::CheckpointReply* reply) {
  return runner_.Run(context, "Checkpoint", [&](const CallPtr& call, const ServiceContext& shard) {
    v1::Propose proposal;
    proposal.mutable_checkpoint();
    shard.member->Propose(std::move(proposal), [call, reply](absl::StatusOr<v1::Result> result) {
      if (result.ok()) *reply->mutable_checkpoint() = std::move(*result->mutable_checkpoint());
      call->Finish(result.status());
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::ReleaseCheckpoint(grpc::CallbackServerContext* context,
                                                          const v1::ReleaseCheckpointRequest* request,
                                                          v1::ReleaseCheckpointReply*) {
  return runner_.Run(context, "ReleaseCheckpoint", [&](const CallPtr& call, const ServiceContext& shard) {
    v1::Propose proposal;
    *proposal.mutable_release_checkpoint() = *request;
    shard.member->Propose(std::move(proposal), [call](const absl::StatusOr<v1::Result>& result) {
      call->Finish(result.status());
    });
    return absl::OkStatus();
  });
}

}  // namespace ccs
