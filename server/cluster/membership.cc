#include "server/cluster/membership.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/layout.h"

namespace ccs {
namespace {

constexpr char kIdle[] = "idle";  // the activity of an engine with nothing to do

}  // namespace

Membership::ConnectionId Membership::Connect(Coordinator::Send send, absl::Time now) {
  Connection& connection = connections_[++last_connection_];
  connection.send = std::move(send);
  connection.heard = now;
  connection.progressed = now;
  return last_connection_;
}

void Membership::Disconnect(ConnectionId id) { connections_.erase(id); }

bool Membership::Heard(ConnectionId id, absl::Time now) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return false;
  found->second.heard = now;
  return true;
}

void Membership::Heartbeat(ConnectionId id, const v1::ShardHeartbeat& heartbeat, absl::Time now) {
  Connection& connection = connections_.at(id);
  const bool moves = heartbeat.progress() != connection.heartbeat.progress() || heartbeat.activity() == kIdle;
  if (moves) connection.progressed = now;
  connection.heartbeat = heartbeat;
}

void Membership::Register(ConnectionId id, const v1::Register& registration, absl::Time now) {
  Connection& connection = connections_.at(id);
  connection.registration = registration;
  connection.heartbeat.Clear();
  connection.progressed = now;
  members_[registration.rank()] = id;
}

void Membership::Release(int rank) {
  if (!members_[rank]) return;
  connections_.at(*members_[rank]).registration.reset();
  members_[rank].reset();
}

std::optional<int> Membership::RankOf(ConnectionId id) const {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.registration) return std::nullopt;
  return found->second.registration->rank();
}

const Membership::Connection* Membership::FindMember(int rank) const {
  return members_[rank] ? &connections_.at(*members_[rank]) : nullptr;
}

const v1::Register* Membership::Find(int rank) const {
  const Connection* member = FindMember(rank);
  return member ? &*member->registration : nullptr;
}

std::vector<int> Membership::MissingRanks() const {
  std::vector<int> missing;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (!members_[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

std::vector<const v1::Register*> Membership::Registrations() const {
  std::vector<const v1::Register*> registrations;
  for (size_t rank = 0; rank < members_.size(); ++rank) registrations.push_back(Find(static_cast<int>(rank)));
  return registrations;
}

void Membership::SendTo(ConnectionId id, const v1::CoordinatorMessage& message) const {
  connections_.at(id).send(message);
}

void Membership::SendToRank(int rank, const v1::CoordinatorMessage& message) const {
  FindMember(rank)->send(message);
}

void Membership::SendToAll(const v1::CoordinatorMessage& message) const {
  for (const auto& member : members_) {
    if (member) SendTo(*member, message);
  }
}

std::optional<std::string> Membership::WhyLost(int rank, absl::Time now, absl::Duration silence,
                                               absl::Duration stall) const {
  const Connection* member = FindMember(rank);
  if (!member) return std::nullopt;
  if (now - member->heard > silence) {
    return absl::StrCat("was silent for ", absl::FormatDuration(now - member->heard));
  }
  const std::string& activity = member->heartbeat.activity();
  if (now - member->progressed > stall && activity != kIdle) {
    return absl::StrCat("has been stuck in '", activity, "' for ",
                        absl::FormatDuration(now - member->progressed));
  }
  return std::nullopt;
}

v1::Layout Membership::MakeLayout(int64_t num_classes) const {
  v1::Layout layout;
  const int num_shards = static_cast<int>(members_.size());
  for (int rank = 0; rank < num_shards; ++rank) {
    const ClassRange range = ClassRangeOf(num_classes, num_shards, rank);
    v1::ShardInfo* shard = layout.add_shards();
    shard->set_rank(rank);
    shard->set_class_start(range.start);
    shard->set_num_classes(range.count);
    if (const v1::Register* registration = Find(rank)) shard->set_address(registration->address());
  }
  return layout;
}

void Membership::FillStatus(int64_t num_classes, absl::Time now, v1::StatusReply* reply) const {
  const v1::Layout layout = MakeLayout(num_classes);
  int64_t newest_step = -1;
  for (const v1::ShardInfo& info : layout.shards()) {
    v1::ShardStatus* shard = reply->add_shards();
    *shard->mutable_info() = info;
    const Connection* member = FindMember(info.rank());
    if (!member) continue;
    shard->set_connected(true);
    shard->set_device(member->registration->device());
    shard->set_state_bytes(member->registration->state_bytes());
    shard->set_workspace_bytes(member->registration->workspace_bytes());
    shard->set_step(member->heartbeat.step());
    shard->set_activity(member->heartbeat.activity());
    shard->set_heartbeat_age_s(absl::ToDoubleSeconds(now - member->heard));
    if (member->heartbeat.step() > newest_step) {
      newest_step = member->heartbeat.step();
      reply->set_loss(member->heartbeat.loss());
    }
  }
}

}  // namespace ccs
