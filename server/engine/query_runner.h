// Evaluations and nearest-centre queries: what they cost the cluster and in which order.
#ifndef CCS_SERVER_ENGINE_QUERY_RUNNER_H_
#define CCS_SERVER_ENGINE_QUERY_RUNNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/shard_backend.h"
#include "server/engine/engine.h"
#include "server/engine/exchange.h"
#include "server/engine/pending_queries.h"
#include "server/engine/progress_board.h"
#include "server/engine/types.h"

namespace ccs {

// Runs queries on one shard. The origin's rows go to all shards, every shard's findings to the origin, which
// answers. Used by the engine's thread only.
//
// Errors end the epoch. A query that cannot be answered for a reason that all shards see alike, or that only
// its origin has, fails alone: its asker is told, and OK is returned.
class QueryRunner {
 public:
  // All outlive the runner.
  QueryRunner(const EngineOptions& options, kernels::ShardBackend* backend, PendingQueries* queries,
              ProgressBoard* progress);

  absl::Status Run(const EvaluateOperation& operation, Position position, Exchange* exchange);
  absl::Status Run(const NearestOperation& operation, Position position, Exchange* exchange);

 private:
  bool Acceptable(int rows, int origin_rank, uint64_t query) const;
  // Fills the backend's features and labels_ with the origin's rows; rows of zeros, unlabelled, if the origin
  // no longer has the query.
  absl::Status Gather(int rows, int origin_rank, uint64_t query, Exchange* exchange);

  const EngineOptions& options_;
  kernels::ShardBackend* const backend_;
  PendingQueries* const queries_;
  ProgressBoard* const progress_;

  std::vector<float> own_features_;  // [rows, dim], of the origin
  std::vector<int64_t> own_labels_;  // [rows], of the origin
  std::vector<int64_t> labels_;      // [rows]
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_QUERY_RUNNER_H_
