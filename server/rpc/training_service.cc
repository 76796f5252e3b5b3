#include "server/rpc/training_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/rpc/tensor.h"

namespace ccs {
namespace {

using CallPtr = std::shared_ptr<Call>;

void Encode(const Position& position, v1::Position* message) {
  message->set_lineage(position.lineage);
  message->set_step(position.step);
}

void Encode(const SliceReply& slice, int dim, v1::StepReply* reply) {
  reply->set_step(slice.step);
  reply->set_loss(slice.loss);
  EncodeTensor(slice.feature_grad, dim, reply->mutable_feature_grad());
  v1::StepStatistics* statistics = reply->mutable_statistics();
  statistics->set_batch_rows(slice.statistics.batch_rows);
  statistics->set_labelled_rows(slice.statistics.labelled_rows);
  statistics->set_sampled_classes(slice.statistics.sampled_classes);
  statistics->set_positives(slice.statistics.positives);
}

// `k` neighbours of each row were asked for; with fewer classes the last columns are padding.
void Encode(const NearestResult& result, int k, int64_t num_classes, v1::NearestReply* reply) {
  const int columns = static_cast<int>(std::min<int64_t>(k, num_classes));
  reply->set_k(columns);
  for (size_t i = 0; i < result.neighbours.size(); ++i) {
    if (static_cast<int>(i % k) >= columns) continue;
    reply->add_class_ids(result.neighbours[i].class_id);
    reply->add_cosines(static_cast<float>(result.neighbours[i].cosine));
  }
  Encode(result.position, reply->mutable_position());
}

// Has a query that the engine knows by `query` ordered; the engine answers it unless that fails.
void Order(v1::Propose proposal, uint64_t query, const ServiceContext& shard) {
  Engine* engine = shard.engine;
  shard.member->Propose(std::move(proposal), [engine, query](const absl::StatusOr<v1::Result>& result) {
    if (!result.ok()) engine->FailQuery(query, result.status());
  });
}

}  // namespace

void TrainingService::Open(const ServiceContext& context) {
  context_ = std::make_unique<const ServiceContext>(context);
  validator_ = std::make_unique<const RequestValidator>(context.rules);
  runner_.Open(context_.get());
}

grpc::ServerUnaryReactor* TrainingService::Describe(grpc::CallbackServerContext* context,
                                                    const v1::DescribeRequest*, v1::DescribeReply* reply) {
  return runner_.Run(context, "Describe", [&](const CallPtr& call, const ServiceContext& shard) {
    *reply->mutable_layout() = shard.member->layout();
    if (reply->layout().shards().empty()) return absl::UnavailableError(shard.member->state());
    *reply->mutable_spec() = shard.spec;
    Encode(shard.assembler->position(), reply->mutable_position());
    reply->set_version(shard.version);
    call->Finish(absl::OkStatus());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainingService::OpenRun(grpc::CallbackServerContext* context,
                                                   const v1::OpenRunRequest* request,
                                                   v1::OpenRunReply* reply) {
  return runner_.Run(context, "OpenRun", [&](const CallPtr& call, const ServiceContext& shard) {
    if (absl::Status status = validator_->OpenRun(*request); !status.ok()) return status;
    v1::Propose proposal;
    *proposal.mutable_open_run() = *request;
    shard.member->Propose(std::move(proposal), [call, &shard, reply](absl::StatusOr<v1::Result> result) {
      if (!result.ok()) return call->Finish(result.status());
      *reply = std::move(*result->mutable_open_run());
      *reply->mutable_spec() = shard.spec;
      *reply->mutable_layout() = shard.member->layout();
      call->Finish(absl::OkStatus());
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainingService::CloseRun(grpc::CallbackServerContext* context,
                                                    const v1::CloseRunRequest* request, v1::CloseRunReply*) {
  return runner_.Run(context, "CloseRun", [&](const CallPtr& call, const ServiceContext& shard) {
    if (absl::Status status = validator_->CloseRun(*request); !status.ok()) return status;
    v1::Propose proposal;
    *proposal.mutable_close_run() = *request;
    shard.member->Propose(std::move(proposal), [call](const absl::StatusOr<v1::Result>& result) {
      call->Finish(result.status());
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainingService::Step(grpc::CallbackServerContext* context,
                                                const v1::StepRequest* request, v1::StepReply* reply) {
  return runner_.Run(context, "Step", [&](const CallPtr& call, const ServiceContext& shard) {
    absl::StatusOr<Slice> slice = validator_->Step(*request);
    if (!slice.ok()) return slice.status();
    slice->deadline = call->deadline();
    shard.assembler->Submit(*std::move(slice), [call, reply, dim = shard.rules.spec.dim](
                                                   absl::StatusOr<std::shared_ptr<const SliceReply>> result) {
      if (result.ok()) Encode(**result, dim, reply);
      call->Finish(result.status());
    });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainingService::Evaluate(grpc::CallbackServerContext* context,
                                                    const v1::EvaluateRequest* request,
                                                    v1::EvaluateReply* reply) {
  return runner_.Run(context, "Evaluate", [&](const CallPtr& call, const ServiceContext& shard) {
    absl::StatusOr<RequestValidator::Query> query = validator_->Evaluate(*request);
    if (!query.ok()) return query.status();
    v1::Propose proposal;
    v1::EvaluateOp* operation = proposal.mutable_evaluate();
    operation->set_rows(static_cast<int32_t>(query->labels.size()));
    if (query->sample_rate) operation->set_sample_rate(*query->sample_rate);
    operation->set_origin_rank(shard.rules.rank);
    operation->set_query(shard.engine->AddEvaluate(
        std::move(query->features), std::move(query->labels),
        [call, reply](absl::StatusOr<EvaluateResult> result) {
          if (!result.ok()) return call->Finish(result.status());
          const int64_t rows = result->labelled_rows;
          reply->set_loss(rows == 0 ? 0 : result->evaluation.loss_sum / static_cast<double>(rows));
          reply->set_labelled_rows(rows);
          reply->set_rank1_hits(result->evaluation.rank1_hits);
          Encode(result->position, reply->mutable_position());
          call->Finish(absl::OkStatus());
        }));
    const uint64_t name = operation->query();
    Order(std::move(proposal), name, shard);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainingService::Nearest(grpc::CallbackServerContext* context,
                                                   const v1::NearestRequest* request,
                                                   v1::NearestReply* reply) {
  return runner_.Run(context, "Nearest", [&](const CallPtr& call, const ServiceContext& shard) {
    absl::StatusOr<std::vector<float>> queries = validator_->Nearest(*request);
    if (!queries.ok()) return queries.status();
    const int k = request->k();
    v1::Propose proposal;
    v1::NearestOp* operation = proposal.mutable_nearest();
    operation->set_rows(static_cast<int32_t>(queries->size() / shard.rules.spec.dim));
    operation->set_k(k);
    operation->set_origin_rank(shard.rules.rank);
    operation->set_query(shard.engine->AddNearest(
        *std::move(queries),
        [call, reply, k, num_classes = shard.rules.spec.num_classes](absl::StatusOr<NearestResult> result) {
          if (result.ok()) Encode(*result, k, num_classes, reply);
          call->Finish(result.status());
        }));
    const uint64_t name = operation->query();
    Order(std::move(proposal), name, shard);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainingService::ReadCentres(grpc::CallbackServerContext* context,
                                                       const v1::ReadCentresRequest* request,
                                                       v1::ReadCentresReply* reply) {
  return runner_.Run(context, "ReadCentres", [&](const CallPtr& call, const ServiceContext& shard) {
    absl::StatusOr<std::vector<int64_t>> class_ids = validator_->ReadCentres(*request);
    if (!class_ids.ok()) return class_ids.status();
    const bool with_momentum = request->with_momentum();
    shard.engine->ReadCentres(
        *std::move(class_ids), with_momentum,
        [call, reply, with_momentum, dim = shard.rules.spec.dim](absl::StatusOr<CentreRows> rows) {
          if (!rows.ok()) return call->Finish(rows.status());
          EncodeTensor(rows->centres, dim, reply->mutable_centres());
          if (with_momentum) EncodeTensor(rows->momentum, dim, reply->mutable_momentum());
          Encode(rows->position, reply->mutable_position());
          call->Finish(absl::OkStatus());
        });
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* TrainingService::WriteCentres(grpc::CallbackServerContext* context,
                                                        const v1::WriteCentresRequest* request,
                                                        v1::WriteCentresReply* reply) {
  return runner_.Run(context, "WriteCentres", [&](const CallPtr& call, const ServiceContext& shard) {
    absl::StatusOr<RequestValidator::Centres> centres = validator_->WriteCentres(*request);
    if (!centres.ok()) return centres.status();
    if (!shard.member->serving()) return absl::UnavailableError(shard.member->state());
    if (!centres->class_ids.empty()) {
      const absl::StatusOr<int64_t> staged =
          shard.staged_writes->Add(request->write_id(), centres->class_ids, centres->values);
      if (!staged.ok()) return staged.status();
      reply->set_staged_rows(*staged);
      shard.member->WriteStaged(request->write_id(), *staged);
    }
    if (!request->has_commit_rows()) {
      Encode(shard.assembler->position(), reply->mutable_position());
      call->Finish(absl::OkStatus());
      return absl::OkStatus();
    }
    v1::Propose proposal;
    proposal.mutable_commit_write()->set_write_id(request->write_id());
    proposal.mutable_commit_write()->set_rows(request->commit_rows());
    shard.member->Propose(std::move(proposal), [call, &shard, reply](absl::StatusOr<v1::Result> result) {
      if (!result.ok()) return call->Finish(result.status());
      reply->set_committed_rows(result->committed_rows());
      Encode(shard.assembler->position(), reply->mutable_position());
      call->Finish(absl::OkStatus());
    });
    return absl::OkStatus();
  });
}

}  // namespace ccs
