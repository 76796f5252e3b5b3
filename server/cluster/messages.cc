#include "server/cluster/messages.h"

namespace ccs {

CheckpointId CheckpointIdFromProto(const v1::CheckpointId& proto) {
  return {proto.lineage(), proto.step(), proto.nonce()};
}

v1::CheckpointId CheckpointIdToProto(const CheckpointId& id) {
  v1::CheckpointId proto;
  proto.set_lineage(id.lineage);
  proto.set_step(id.step);
  proto.set_nonce(id.nonce);
  return proto;
}

StepParams StepParamsFromProto(const v1::StepParams& proto) {
  StepParams params;
  params.learning_rate = proto.learning_rate();
  if (proto.has_scale()) params.scale = proto.scale();
  if (proto.has_margin()) {
    params.margin = kernels::Margin{proto.margin().m1(), proto.margin().m2(), proto.margin().m3()};
  }
  params.checkpoint = proto.checkpoint();
  return params;
}

v1::StepParams StepParamsToProto(const StepParams& params) {
  v1::StepParams proto;
  proto.set_learning_rate(params.learning_rate);
  if (params.scale) proto.set_scale(*params.scale);
  if (params.margin) {
    proto.mutable_margin()->set_m1(params.margin->m1);
    proto.mutable_margin()->set_m2(params.margin->m2);
    proto.mutable_margin()->set_m3(params.margin->m3);
  }
  proto.set_checkpoint(params.checkpoint);
  return proto;
}

StepOperation StepOperationFromProto(const v1::StepOp& proto) {
  StepOperation operation;
  operation.step = proto.step();
  operation.params = StepParamsFromProto(proto.params());
  operation.rows_per_rank.assign(proto.rows_per_rank().begin(), proto.rows_per_rank().end());
  for (const v1::SliceChoice& slice : proto.slices()) {
    operation.slices.push_back({slice.trainer_rank(), slice.version()});
  }
  if (proto.has_checkpoint()) operation.checkpoint = CheckpointIdFromProto(proto.checkpoint());
  return operation;
}

EvaluateOperation EvaluateOperationFromProto(const v1::EvaluateOp& proto) {
  EvaluateOperation operation;
  operation.rows = proto.rows();
  if (proto.has_sample_rate()) operation.sample_rate = proto.sample_rate();
  operation.origin_rank = proto.origin_rank();
  operation.query = proto.query();
  return operation;
}

NearestOperation NearestOperationFromProto(const v1::NearestOp& proto) {
  return {proto.rows(), proto.k(), proto.origin_rank(), proto.query()};
}

CommitWriteOperation CommitWriteOperationFromProto(const v1::CommitWriteOp& proto) {
  return {proto.write_id(), proto.rows()};
}

CheckpointOperation CheckpointOperationFromProto(const v1::CheckpointOp& proto) {
  return {CheckpointIdFromProto(proto.id()), proto.reason()};
}

RunState RunStateFromProto(const v1::RunState& proto) {
  return {proto.run_id(), {proto.incarnations().begin(), proto.incarnations().end()}};
}

v1::RunState RunStateToProto(const RunState& run) {
  v1::RunState proto;
  proto.set_run_id(run.run_id);
  proto.set_num_trainers(run.num_trainers());
  proto.mutable_incarnations()->Assign(run.incarnations.begin(), run.incarnations.end());
  return proto;
}

Position PositionFromProto(const v1::LogPosition& proto) {
  return {proto.lineage(), proto.step(), proto.index()};
}

v1::LogPosition PositionToProto(const Position& position) {
  v1::LogPosition proto;
  proto.set_lineage(position.lineage);
  proto.set_step(position.step);
  proto.set_index(position.index);
  return proto;
}

Origin OriginFromProto(const v1::Origin& proto) {
  Origin origin;
  if (proto.has_checkpoint()) origin.checkpoint = CheckpointIdFromProto(proto.checkpoint());
  for (const v1::Replay& replay : proto.replays()) {
    Replay& added = origin.replays.emplace_back(Replay{replay.lineage(), replay.to()});
    if (replay.has_to_step()) added.to_step = replay.to_step();
  }
  return origin;
}

v1::Origin OriginToProto(const Origin& origin) {
  v1::Origin proto;
  if (origin.checkpoint) *proto.mutable_checkpoint() = CheckpointIdToProto(*origin.checkpoint);
  for (const Replay& replay : origin.replays) {
    v1::Replay* added = proto.add_replays();
    added->set_lineage(replay.lineage);
    added->set_to(replay.to);
    if (replay.to_step != Replay{}.to_step) added->set_to_step(replay.to_step);
  }
  return proto;
}

EpochPlan EpochPlanFromProto(const v1::Form& proto) {
  EpochPlan plan;
  plan.epoch = proto.epoch();
  plan.lineage = proto.lineage();
  plan.from_memory = proto.from_memory();
  plan.origin = OriginFromProto(proto.origin());
  plan.begins_lineage = proto.begins_lineage();
  return plan;
}

FormedState FormedStateFromProto(const v1::Formed& proto) {
  FormedState state{PositionFromProto(proto.position()), RunStateFromProto(proto.run()), {}};
  for (const v1::CommittedWrite& write : proto.committed_writes()) {
    state.committed_writes.push_back({write.write_id(), write.rows()});
  }
  return state;
}

v1::Formed FormedStateToProto(const FormedState& state) {
  v1::Formed proto;
  *proto.mutable_position() = PositionToProto(state.position);
  *proto.mutable_run() = RunStateToProto(state.run);
  for (const CommittedWrite& write : state.committed_writes) {
    v1::CommittedWrite* added = proto.add_committed_writes();
    added->set_write_id(write.write_id);
    added->set_rows(write.rows);
  }
  return proto;
}

v1::CheckpointInfo CheckpointInfoToProto(const StoredCheckpoint& checkpoint) {
  v1::CheckpointInfo proto;
  *proto.mutable_id() = CheckpointIdToProto(checkpoint.header.id);
  proto.set_created_unix_s(absl::ToDoubleSeconds(checkpoint.header.created - absl::UnixEpoch()));
  proto.set_bytes(checkpoint.bytes);
  proto.set_index(checkpoint.header.index);
  proto.set_kept(checkpoint.header.kept);
  return proto;
}

v1::LoggedLineage LoggedLineageToProto(const LoggedLineage& lineage, const Origin& origin) {
  v1::LoggedLineage proto;
  proto.set_lineage(lineage.lineage);
  *proto.mutable_origin() = OriginToProto(origin);
  proto.set_begin_step(lineage.begin_step);
  proto.set_first(lineage.first);
  proto.set_last(lineage.last);
  proto.set_last_step(lineage.last_step);
  return proto;
}

v1::SliceReady SliceReadyToProto(const Slice& slice, int version, int attempt, absl::Time now) {
  v1::SliceReady proto;
  proto.set_run_id(slice.run_id);
  proto.set_step(slice.step);
  proto.set_trainer_rank(slice.trainer_rank);
  proto.set_version(version);
  proto.set_rows(slice.rows());
  *proto.mutable_params() = StepParamsToProto(slice.params);
  proto.set_wait_ms(absl::ToInt64Milliseconds(slice.deadline - now));
  proto.set_attempt(attempt);
  proto.set_incarnation(slice.incarnation);
  proto.set_call(slice.call);
  return proto;
}

}  // namespace ccs
