// The stream over gRPC: coordinator, service, connector and member together.
#include "server/cluster/cluster_service.h"

#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "server/cluster/coordinator_ticker.h"
#include "server/cluster/grpc_connector.h"
#include "server/cluster/local_connector.h"
#include "tests/server/cluster/member_rig.h"

namespace ccs {
namespace {

using ::testing::HasSubstr;

// Rank 0's process, as far as the others see it.
class Host {
 public:
  explicit Host(int num_shards, int port = 0) : coordinator_(Options(num_shards)), service_(&coordinator_) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~Host() {
    service_.Close();
    server_->Shutdown();
  }
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Coordinator* coordinator() { return &coordinator_; }

 private:
  static CoordinatorOptions Options(int num_shards) {
    CoordinatorOptions options;
    options.num_shards = num_shards;
    options.spec = MemberRig::Spec();
    options.version = "1.0";
    return options;
  }
  Coordinator coordinator_;
  CoordinatorTicker ticker_{&coordinator_};
  ClusterService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// What one stream brings.
class Inbox {
 public:
  ControlHandlers handlers() {
    return {[this](v1::CoordinatorMessage message) {
              std::lock_guard lock(mutex_);
              messages_.push_back(std::move(message));
            },
            [this](absl::Status why) {
              std::lock_guard lock(mutex_);
              ++closings_;
              why_ = std::move(why);
            }};
  }
  bool Has(v1::CoordinatorMessage::KindCase kind) const {
    std::lock_guard lock(mutex_);
    return std::any_of(messages_.begin(), messages_.end(),
                       [kind](const auto& message) { return message.kind_case() == kind; });
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return messages_.size();
  }
  std::vector<v1::CoordinatorMessage> messages() const {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  int closings() const {
    std::lock_guard lock(mutex_);
    return closings_;
  }
  absl::Status why() const {
    std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<v1::CoordinatorMessage> messages_;
  int closings_ = 0;
  absl::Status why_;
};

v1::ShardMessage Registration(int rank, int num_shards) {
  v1::ShardMessage message;
  *message.mutable_register_() = MemberRig::Options().registration;
  message.mutable_register_()->set_rank(rank);
  message.mutable_register_()->set_num_shards(num_shards);
  message.mutable_register_()->set_process_nonce(50 + rank);
  return message;
}
v1::ShardMessage StatusQuestion(uint64_t token) {
  v1::ShardMessage message;
  message.mutable_propose()->set_token(token);
  message.mutable_propose()->mutable_status();
  return message;
}

TEST(ClusterServiceTest, CarriesMessagesBothWaysInOrder) {
  Host host(2);
  GrpcConnector connector(host.address());
  Inbox inbox;
  auto stream = connector.Connect(inbox.handlers(), absl::Seconds(5));
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (uint64_t token = 1; token <= 200; ++token) (*stream)->Send(StatusQuestion(token));
  ASSERT_TRUE(Eventually([&] { return inbox.size() == 200; }));
  uint64_t expected = 1;
  for (const auto& message : inbox.messages()) EXPECT_EQ(message.result().token(), expected++);
}

TEST(ClusterServiceTest, AShardThatGoesIsMissedAtOnce) {
  Host host(2);
  GrpcConnector connector(host.address());
  Inbox first_inbox;
  Inbox second_inbox;
  auto first = connector.Connect(first_inbox.handlers(), absl::Seconds(5));
  auto second = connector.Connect(second_inbox.handlers(), absl::Seconds(5));
  ASSERT_TRUE(first.ok() && second.ok());
  (*first)->Send(Registration(0, 2));
  (*second)->Send(Registration(1, 2));
  ASSERT_TRUE(Eventually([&] { return first_inbox.Has(v1::CoordinatorMessage::kForm); }));
  second->reset();
  ASSERT_TRUE(Eventually([&] { return first_inbox.Has(v1::CoordinatorMessage::kDisband); }));
  EXPECT_THAT(first_inbox.messages().back().disband().status().message(), HasSubstr("rank 1 left"));
  EXPECT_EQ(second_inbox.closings(), 1);
}

TEST(ClusterServiceTest, ACoordinatorThatStopsClosesItsStreamsOnce) {
  auto host = std::make_unique<Host>(2);
  GrpcConnector connector(host->address());
  Inbox inbox;
  auto stream = connector.Connect(inbox.handlers(), absl::Seconds(5));
  ASSERT_TRUE(stream.ok());
  (*stream)->Send(StatusQuestion(1));
  ASSERT_TRUE(Eventually([&] { return inbox.size() == 1; }));
  host.reset();
  ASSERT_TRUE(Eventually([&] { return inbox.closings() == 1; }));
  EXPECT_EQ(inbox.why().code(), absl::StatusCode::kUnavailable);
  (*stream)->Send(StatusQuestion(2));  // goes nowhere, and does no harm
  stream->reset();
  EXPECT_EQ(inbox.closings(), 1);
}

TEST(ClusterServiceTest, NobodyThereIsUnavailableWithTheAddress) {
  int port = 0;
  {
    Host host(1);
    port = host.port();
  }
  GrpcConnector connector("127.0.0.1:" + std::to_string(port));
  Inbox inbox;
  const auto stream = connector.Connect(inbox.handlers(), absl::Milliseconds(200));
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(stream.status().message()), HasSubstr("127.0.0.1:" + std::to_string(port)));
}

TEST(ClusterServiceTest, AMemberServesAgainUnderANewCoordinator) {
  auto host = std::make_unique<Host>(1);
  const int port = host->port();
  GrpcConnector connector(host->address());
  MemberRig rig(MemberRig::Options(), &connector);
  ASSERT_TRUE(Eventually([&] { return rig.member.serving(); }));
  host.reset();
  ASSERT_TRUE(Eventually([&] { return !rig.member.serving(); }));
  host = std::make_unique<Host>(1, port);
  ASSERT_TRUE(Eventually([&] { return rig.member.serving(); }));
  EXPECT_TRUE(rig.member.Drain("the test is over").ok());
}

TEST(ClusterServiceTest, LocalAndRemoteShardsAreEqual) {
  Host host(2);
  LocalConnector local(host.coordinator());
  GrpcConnector remote(host.address());
  Inbox local_inbox;
  Inbox remote_inbox;
  auto first = local.Connect(local_inbox.handlers(), absl::Seconds(5));
  auto second = remote.Connect(remote_inbox.handlers(), absl::Seconds(5));
  ASSERT_TRUE(first.ok() && second.ok());
  (*first)->Send(Registration(0, 2));
  (*second)->Send(Registration(1, 2));
  EXPECT_TRUE(Eventually([&] { return local_inbox.Has(v1::CoordinatorMessage::kForm); }));
  EXPECT_TRUE(Eventually([&] { return remote_inbox.Has(v1::CoordinatorMessage::kForm); }));
  first->reset();
  EXPECT_TRUE(Eventually([&] { return remote_inbox.Has(v1::CoordinatorMessage::kDisband); }));
}

}  // namespace
}  // namespace ccs
