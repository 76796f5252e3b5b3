#include "server/engine/query_runner.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/sampling.h"

namespace ccs {

QueryRunner::QueryRunner(const EngineOptions& options, kernels::ShardBackend* backend,
                         PendingQueries* queries, ProgressBoard* progress)
    : options_(options), backend_(backend), queries_(queries), progress_(progress) {}

bool QueryRunner::Acceptable(int rows, int origin_rank, uint64_t query) const {
  if (rows >= 0 && rows <= options_.spec.max_batch && origin_rank >= 0 && origin_rank < options_.num_shards) {
    return true;
  }
  if (origin_rank == options_.rank) {
    queries_->Fail(query, absl::InvalidArgumentError(absl::StrCat(
                              "a query of ", rows, " rows where max_batch is ", options_.spec.max_batch)));
  }
  return false;
}

absl::Status QueryRunner::Gather(int rows, int origin_rank, uint64_t query, Exchange* exchange) {
  const size_t dim = options_.spec.dim;
  if (origin_rank == options_.rank) {
    own_features_.assign(rows * dim, 0.0f);
    own_labels_.assign(rows, -1);
    if (const std::shared_ptr<const Query> input = queries_->Find(query)) {
      if (input->features.size() == own_features_.size()) {
        own_features_ = input->features;
      } else {
        queries_->Fail(query, absl::InternalError("the query was ordered with another number of rows"));
      }
      if (input->labels.size() == own_labels_.size()) own_labels_ = input->labels;
    }
  }
  labels_.resize(rows);
  absl::Status status = exchange->Broadcast(origin_rank, own_features_.data(), backend_->features(),
                                            rows * dim * sizeof(float));
  if (!status.ok()) return status;
  return exchange->Broadcast(origin_rank, own_labels_.data(), labels_.data(), rows * sizeof(int64_t));
}

absl::Status QueryRunner::Run(const EvaluateOperation& operation, Position position, Exchange* exchange) {
  if (!Acceptable(operation.rows, operation.origin_rank, operation.query)) return absl::OkStatus();
  progress_->SetActivity("evaluate");
  absl::Status status = Gather(operation.rows, operation.origin_rank, operation.query, exchange);
  if (!status.ok()) return status;
  const kernels::ShardConfig& shard = backend_->config();
  kernels::Sampler sampler(shard.num_local, operation.sample_rate.value_or(1), options_.spec.seed,
                           options_.rank);
  const std::vector<int64_t> positives = kernels::LocalPositives(labels_, shard.class_start, shard.num_local);
  const absl::Span<const int64_t> rows = sampler.Draw(position.step, positives);
  std::vector<kernels::EvaluationPartial> partials;
  status = backend_->SetBatch(labels_);
  if (status.ok()) status = backend_->Evaluate(options_.spec.head, rows, &partials);
  if (!status.ok()) return status;
  std::vector<kernels::EvaluationPartial> gathered(partials.size() * options_.num_shards);
  status = exchange->GatherEqual(partials.data(), gathered.data(),
                                 partials.size() * sizeof(kernels::EvaluationPartial));
  if (!status.ok() || operation.origin_rank != options_.rank) return status;
  EvaluateResult result;
  result.evaluation = kernels::CombineEvaluation(gathered, options_.num_shards, labels_);
  result.labelled_rows =
      std::count_if(labels_.begin(), labels_.end(), [](int64_t label) { return label >= 0; });
  result.position = position;
  queries_->Answer(operation.query, result);
  return absl::OkStatus();
}

absl::Status QueryRunner::Run(const NearestOperation& operation, Position position, Exchange* exchange) {
  if (!Acceptable(operation.rows, operation.origin_rank, operation.query)) return absl::OkStatus();
  progress_->SetActivity("nearest");
  absl::Status status = Gather(operation.rows, operation.origin_rank, operation.query, exchange);
  if (!status.ok()) return status;
  std::vector<kernels::Neighbour> neighbours;
  status = backend_->SetBatch(labels_);
  if (status.ok()) status = backend_->Nearest(operation.k, &neighbours);
  if (!status.ok()) return status;
  std::vector<kernels::Neighbour> gathered(neighbours.size() * options_.num_shards);
  status = exchange->GatherEqual(neighbours.data(), gathered.data(),
                                 neighbours.size() * sizeof(kernels::Neighbour));
  if (!status.ok() || operation.origin_rank != options_.rank) return status;
  NearestResult result;
  result.neighbours = kernels::MergeNeighbours(gathered, options_.num_shards, operation.rows, operation.k);
  result.position = position;
  queries_->Answer(operation.query, std::move(result));
  return absl::OkStatus();
}

}  // namespace ccs
