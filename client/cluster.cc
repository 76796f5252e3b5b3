#include "client/cluster.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/layout.h"

namespace ccs::client {
namespace {

constexpr int64_t kDefaultMaxBatch = 4096;  // of a spec that names none
// How long one server may take to say where the others are.
constexpr absl::Duration kLongestLook = absl::Milliseconds(250);

std::vector<Shard> ShardsOf(const ccs::v1::Layout& layout) {
  std::vector<Shard> shards;
  for (const ccs::v1::ShardInfo& shard : layout.shards()) {
    shards.push_back({.rank = shard.rank(),
                      .address = shard.address(),
                      .class_start = shard.class_start(),
                      .num_classes = shard.num_classes()});
  }
  return shards;
}

std::vector<Stubs<Training>::Server> ServersOf(const std::vector<Shard>& shards) {
  std::vector<Stubs<Training>::Server> servers;
  servers.reserve(shards.size());
  for (const Shard& shard : shards) {
    servers.push_back({absl::StrCat("shard ", shard.rank, " (", shard.address, ")"), shard.address});
  }
  return servers;
}

std::vector<Stubs<Training>::Server> ServersOf(const std::vector<std::string>& addresses) {
  std::vector<Stubs<Training>::Server> servers;
  servers.reserve(addresses.size());
  for (const std::string& address : addresses) servers.push_back({address, address});
  return servers;
}

}  // namespace

Position ToPosition(const ccs::v1::Position& position) {
  return {.lineage = position.lineage(), .step = position.step()};
}

void Cluster::LookAgain(Clock::time_point deadline) const {
  const ccs::v1::DescribeRequest request;
  ccs::v1::DescribeReply reply;
  Call call = entrances.ToAny(&Stubs<Training>::Async::Describe, &request, &reply);
  const Call others = shards.ToAny(&Stubs<Training>::Async::Describe, &request, &reply);
  call.targets.insert(call.targets.end(), others.targets.begin(), others.targets.end());
  // In another order each time: there may not be time for more than a few, and the first may be those that
  // are lost.
  std::shuffle(call.targets.begin(), call.targets.end(), std::minstd_rand(std::random_device{}()));
  const SendOptions send{.deadline = deadline,
                         .attempt_timeout = kLongestLook,
                         .max_attempts = static_cast<int>(call.targets.size())};
  if (!Send({call}, send).ok()) return;
  const std::vector<Shard> found = ShardsOf(reply.layout());
  if (found.size() != info.shards.size() || !ValidateShards(found, info.num_classes).ok()) return;
  shards.Move(ServersOf(found));
}

absl::StatusOr<std::shared_ptr<const Cluster>> MakeCluster(const ccs::v1::ModelSpec& spec,
                                                           const ccs::v1::Layout& layout,
                                                           const ccs::v1::Position& position,
                                                           const std::string& version, absl::Duration timeout,
                                                           const std::vector<std::string>& addresses) {
  ClusterInfo info{.num_classes = spec.num_classes(),
                   .dim = spec.dim(),
                   .shards = ShardsOf(layout),
                   .position = ToPosition(position),
                   .version = version};
  if (absl::Status status = ValidateShards(info.shards, info.num_classes); !status.ok()) return status;
  if (info.dim <= 0) return absl::InternalError(absl::StrCat("the cluster's spec has dim ", info.dim));
  Stubs<Training> shards(ServersOf(info.shards));
  return std::make_shared<const Cluster>(
      Cluster{.info = std::move(info),
              .max_batch = spec.max_batch() > 0 ? spec.max_batch() : kDefaultMaxBatch,
              .timeout = timeout,
              .addresses = addresses,
              .shards = std::move(shards),
              .entrances = Stubs<Training>(ServersOf(addresses))});
}

}  // namespace ccs::client
