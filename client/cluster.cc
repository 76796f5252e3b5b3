#include "client/cluster.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/layout.h"

namespace ccs::client {
namespace {

constexpr int64_t kDefaultMaxBatch = 4096;  // of a spec that names none

}  // namespace

Position ToPosition(const ccs::v1::Position& position) {
  return {.lineage = position.lineage(), .step = position.step()};
}

absl::StatusOr<std::shared_ptr<const Cluster>> MakeCluster(const ccs::v1::ModelSpec& spec,
                                                           const ccs::v1::Layout& layout,
                                                           const ccs::v1::Position& position,
                                                           const std::string& version,
                                                           absl::Duration timeout) {
  ClusterInfo info{.num_classes = spec.num_classes(),
                   .dim = spec.dim(),
                   .shards = {},
                   .position = ToPosition(position),
                   .version = version};
  std::vector<Stubs<Training>::Server> servers;
  for (const ccs::v1::ShardInfo& shard : layout.shards()) {
    info.shards.push_back({.rank = shard.rank(),
                           .address = shard.address(),
                           .class_start = shard.class_start(),
                           .num_classes = shard.num_classes()});
    servers.push_back({absl::StrCat("shard ", shard.rank(), " (", shard.address(), ")"), shard.address()});
  }
  if (absl::Status status = ValidateShards(info.shards, info.num_classes); !status.ok()) return status;
  if (info.dim <= 0) return absl::InternalError(absl::StrCat("the cluster's spec has dim ", info.dim));
  return std::make_shared<const Cluster>(
      Cluster{.info = std::move(info),
              .max_batch = spec.max_batch() > 0 ? spec.max_batch() : kDefaultMaxBatch,
              .timeout = timeout,
              .shards = Stubs<Training>(servers)});
}

}  // namespace ccs::client
