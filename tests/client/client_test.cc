// Connecting, evaluations and queries.
#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "tests/client/connected.h"

namespace ccs::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A port that is bound, and either listens without ever answering or refuses connections.
class SilentPort {
 public:
  explicit SilentPort(bool listening) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    if (listening) {
      EXPECT_EQ(::listen(socket_, 8), 0);
    }
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~SilentPort() { ::close(socket_); }
  const std::string& address() const { return address_; }

 private:
  const int socket_;
  std::string address_;
};

TEST(Connect, LearnsTheClusterFromAnyShard) {
  FakeCluster cluster(3, 100, 8);
  const auto client = Client::Connect({.addresses = {cluster.address(2)}, .timeout = kAmple});
  ASSERT_TRUE(client.ok()) << client.status();
  const ClusterInfo& info = (*client)->info();
  EXPECT_EQ(info.num_classes, 100);
  EXPECT_EQ(info.dim, 8);
  EXPECT_EQ(info.version, "fake");
  EXPECT_EQ(info.position.lineage, kLineage);
  EXPECT_EQ(info.position.step, kStep);
  ASSERT_EQ(info.shards.size(), 3u);
  EXPECT_EQ(info.shards[1].address, cluster.address(1));
  EXPECT_EQ(info.shards[1].class_start, 34);
  EXPECT_EQ(info.shards[1].num_classes, 33);
}

TEST(Connect, FallsOverToTheNextAddressWhenOneRefuses) {
  const SilentPort refusing(false);
  FakeCluster cluster(1, 100, 8);
  const auto client =
      Client::Connect({.addresses = {refusing.address(), cluster.address(0)}, .timeout = kAmple});
  EXPECT_TRUE(client.ok()) << client.status();
}

TEST(Connect, FallsOverToTheNextAddressWhenOneIsSilent) {
  const SilentPort silent(true);
  FakeCluster cluster(1, 100, 8);
  const auto client =
      Client::Connect({.addresses = {silent.address(), cluster.address(0)}, .timeout = absl::Seconds(1)});
  EXPECT_TRUE(client.ok()) << client.status();
}

TEST(Connect, WaitsForAClusterThatIsForming) {
  FakeCluster cluster(1, 100, 8);
  cluster.Fail(0, "Describe", {grpc::UNAVAILABLE, "waiting for rank 1"}, 2);
  EXPECT_NE(ConnectTo(cluster), nullptr);
  EXPECT_EQ(cluster.requests(0, "Describe").size(), 3u);
}

TEST(Connect, IsUnavailableByTheDeadlineWhenNothingListens) {
  const SilentPort refusing(false);
  const absl::Time start = absl::Now();
  const auto client =
      Client::Connect({.addresses = {refusing.address()}, .timeout = absl::Milliseconds(300)});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(client.status().message(), AllOf(HasSubstr(refusing.address()), HasSubstr("attempts")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(Connect, RefusesOptionsThatCannotWork) {
  EXPECT_EQ(Client::Connect({.addresses = {}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Client::Connect({.timeout = absl::ZeroDuration()}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Connect, AcceptsAnInfiniteTimeout) {
  FakeCluster cluster(1, 100, 8);
  EXPECT_NE(ConnectTo(cluster, absl::InfiniteDuration()), nullptr);
}

TEST(Evaluate, AddsUpPiecesOfTheLargestBatch) {
  FakeCluster cluster(2, 100, 2, /*max_batch=*/3);
  const auto client = ConnectTo(cluster);
  const std::vector<int64_t> labels = {1, 2, -1, 4, 6, 7, 10};
  const auto result = client->Evaluate(Ramp(14), labels, 0.5);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_DOUBLE_EQ(result->loss, (1 + 2 + 4 + 6 + 7 + 10) / 6.0);
  EXPECT_EQ(result->labelled_rows, 6);
  EXPECT_EQ(result->rank1_hits, 4);
  const auto requests = cluster.Requests<ccs::v1::EvaluateRequest>(0, "Evaluate");
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].features().rows(), 3);
  EXPECT_EQ(requests[2].features().rows(), 1);
  EXPECT_EQ(requests[2].sample_rate(), 0.5);
}

TEST(Evaluate, WithoutARateOrLabelsAsksForAllClassesAndHasNoLoss) {
  FakeCluster cluster(1, 100, 2);
  const auto result = ConnectTo(cluster)->Evaluate(Ramp(4), std::vector<int64_t>{-1, -1});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->loss, 0);
  EXPECT_FALSE(cluster.Requests<ccs::v1::EvaluateRequest>(0, "Evaluate")[0].has_sample_rate());
}

TEST(Evaluate, MovesOnToAnotherShardWhenOneIsUnavailable) {
  FakeCluster cluster(2, 100, 2);
  cluster.Fail(0, "Evaluate", {grpc::UNAVAILABLE, "gone"}, 1000);
  EXPECT_TRUE(ConnectTo(cluster)->Evaluate(Ramp(2), std::vector<int64_t>{5}).ok());
  EXPECT_EQ(cluster.requests(0, "Evaluate").size(), 1u);
  EXPECT_EQ(cluster.requests(1, "Evaluate").size(), 1u);
}

TEST(Evaluate, RefusesWrongSizesLocallyAndSurfacesTheServersRefusal) {
  FakeCluster cluster(1, 100, 2);
  const auto client = ConnectTo(cluster);
  EXPECT_EQ(client->Evaluate(Ramp(3), std::vector<int64_t>{5}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(cluster.requests(0, "Evaluate").empty());
  cluster.Fail(0, "Evaluate", {grpc::INVALID_ARGUMENT, "label 500"});
  EXPECT_THAT(client->Evaluate(Ramp(2), std::vector<int64_t>{500}).status().message(),
              HasSubstr("label 500"));
}

TEST(Nearest, JoinsPiecesOfTheLargestBatchInOrder) {
  FakeCluster cluster(2, 100, 2, /*max_batch=*/2);
  cluster.Fail(0, "Nearest", {grpc::UNAVAILABLE, "gone"});
  const auto result = ConnectTo(cluster)->Nearest(Ramp(6), 3);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->size(), 3u);
  const int64_t first_classes[] = {0, 10, 0};  // the fake counts from 0 in each request
  for (size_t row = 0; row < 3; ++row) {
    ASSERT_EQ((*result)[row].size(), 3u);
    EXPECT_EQ((*result)[row][0].class_id, first_classes[row]);
    EXPECT_EQ((*result)[row][2].class_id, first_classes[row] + 2);
    EXPECT_FLOAT_EQ((*result)[row][2].cosine, 1.0f / 3);
  }
}

TEST(Nearest, RefusesQueriesThatAreNotRows) {
  FakeCluster cluster(1, 100, 2);
  EXPECT_EQ(ConnectTo(cluster)->Nearest(Ramp(3), 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ccs::client
