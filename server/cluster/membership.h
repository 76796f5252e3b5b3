// Which shards are connected, registered and alive.
#ifndef CCS_SERVER_CLUSTER_MEMBERSHIP_H_
#define CCS_SERVER_CLUSTER_MEMBERSHIP_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/cluster/coordinator.h"

namespace ccs {

// A connection becomes a member when it registers, and stays one until it is released. Not thread-safe.
class Membership {
 public:
  using ConnectionId = Coordinator::ConnectionId;

  explicit Membership(int num_shards) : members_(num_shards) {}

  ConnectionId Connect(Coordinator::Send send, absl::Time now);
  void Disconnect(ConnectionId id);  // of a connection that is not a member
  // Something came from it. False if there is no such connection.
  bool Heard(ConnectionId id, absl::Time now);
  void Heartbeat(ConnectionId id, const v1::ShardHeartbeat& heartbeat, absl::Time now);

  void Register(ConnectionId id, const v1::Register& registration, absl::Time now);
  void Release(int rank);
  std::optional<int> RankOf(ConnectionId id) const;
  // Null if the rank has no member.
  const v1::Register* Find(int rank) const;
  std::vector<int> MissingRanks() const;
  // By rank; none is missing.
  std::vector<const v1::Register*> Registrations() const;

  void SendTo(ConnectionId id, const v1::CoordinatorMessage& message) const;
  void SendToRank(int rank, const v1::CoordinatorMessage& message) const;  // of a member
  void SendToAll(const v1::CoordinatorMessage& message) const;             // the members

  // Why the rank's member counts as lost: nothing heard for `silence`, or a busy engine that got no further
  // for `stall`.
  std::optional<std::string> WhyLost(int rank, absl::Time now, absl::Duration silence,
                                     absl::Duration stall) const;

  // By rank, with each shard's classes and, for members, address.
  v1::Layout MakeLayout(int64_t num_classes) const;
  // The reply's shards and loss.
  void FillStatus(int64_t num_classes, absl::Time now, v1::StatusReply* reply) const;

 private:
  struct Connection {
    Coordinator::Send send;
    absl::Time heard;
    std::optional<v1::Register> registration;  // of a member
    v1::ShardHeartbeat heartbeat;              // the last one
    absl::Time progressed;                     // when its progress last grew, or it was idle
  };

  const Connection* FindMember(int rank) const;

  ConnectionId last_connection_ = 0;
  std::map<ConnectionId, Connection> connections_;
  std::vector<std::optional<ConnectionId>> members_;  // by rank
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_MEMBERSHIP_H_
