// Between the messages of the cluster's stream and the engine's plain types.
#ifndef CCS_SERVER_CLUSTER_MESSAGES_H_
#define CCS_SERVER_CLUSTER_MESSAGES_H_

#include <ccs/v1/cluster.pb.h>

#include "absl/time/time.h"
#include "server/engine/types.h"
#include "server/storage/step_log.h"

namespace ccs {

CheckpointId CheckpointIdFromProto(const v1::CheckpointId& proto);
v1::CheckpointId CheckpointIdToProto(const CheckpointId& id);

StepParams StepParamsFromProto(const v1::StepParams& proto);
v1::StepParams StepParamsToProto(const StepParams& params);

StepOperation StepOperationFromProto(const v1::StepOp& proto);
EvaluateOperation EvaluateOperationFromProto(const v1::EvaluateOp& proto);
NearestOperation NearestOperationFromProto(const v1::NearestOp& proto);
CommitWriteOperation CommitWriteOperationFromProto(const v1::CommitWriteOp& proto);
CheckpointOperation CheckpointOperationFromProto(const v1::CheckpointOp& proto);
RunState RunStateFromProto(const v1::RunState& proto);

v1::RunState RunStateToProto(const RunState& run);

Position PositionFromProto(const v1::LogPosition& proto);
v1::LogPosition PositionToProto(const Position& position);
Origin OriginFromProto(const v1::Origin& proto);
v1::Origin OriginToProto(const Origin& origin);
EpochPlan EpochPlanFromProto(const v1::Form& proto);
FormedState FormedStateFromProto(const v1::Formed& proto);
// The epoch is left to the caller.
v1::Formed FormedStateToProto(const FormedState& state);

v1::CheckpointInfo CheckpointInfoToProto(const StoredCheckpoint& checkpoint);
v1::LoggedLineage LoggedLineageToProto(const LoggedLineage& lineage, const Origin& origin);

// The epoch is left to the caller. `now` turns the slice's deadline into the time left.
v1::SliceReady SliceReadyToProto(const Slice& slice, int version, int attempt, absl::Time now);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_MESSAGES_H_
