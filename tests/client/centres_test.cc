// Reading and writing centres at the shards that own them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tests/client/connected.h"

namespace ccs::client {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

constexpr size_t kLargestMessage = 4 << 20;

TEST(ReadCentres, ComeBackInTheOrderAskedFor) {
  FakeCluster cluster(3, 10, 2);
  const std::vector<int64_t> ids = {9, 0, 4, 3, 9, 7, 1};
  const auto centres = ConnectTo(cluster)->ReadCentres(ids);
  ASSERT_TRUE(centres.ok()) << centres.status();
  std::vector<float> expected;
  for (const int64_t id : ids) expected.insert(expected.end(), 2, static_cast<float>(id));
  EXPECT_EQ(*centres, expected);
}

TEST(ReadCentres, RetriesAndRefuses) {
  FakeCluster cluster(2, 10, 2);
  const auto client = ConnectTo(cluster);
  cluster.Fail(1, "ReadCentres", {grpc::UNAVAILABLE, "forming"});
  EXPECT_TRUE(client->ReadCentres(std::vector<int64_t>{1, 9}).ok());
  EXPECT_EQ(cluster.requests(1, "ReadCentres").size(), 2u);
  const auto outside = client->ReadCentres(std::vector<int64_t>{1, 10});
  EXPECT_EQ(outside.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(outside.status().message(),
              AllOf(HasSubstr("class id 10"), HasSubstr("place 1"), HasSubstr("[0, 10)")));
  EXPECT_EQ(client->ReadCentres(std::vector<int64_t>{-1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ReadCentres, NoIdsNeedNoRequest) {
  FakeCluster cluster(1, 10, 2);
  const auto centres = ConnectTo(cluster)->ReadCentres({});
  ASSERT_TRUE(centres.ok());
  EXPECT_TRUE(centres->empty());
  EXPECT_TRUE(cluster.requests(0, "ReadCentres").empty());
}

// Many rows to a message, and many messages of one row.
class WriteLarge : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(WriteLarge, StagesChunksAtTheOwnersAndCommitsOnce) {
  const auto [num_classes, dim] = GetParam();
  FakeCluster cluster(2, num_classes, dim);
  const auto client = ConnectTo(cluster);
  std::vector<int64_t> ids;
  std::vector<float> centres;
  for (int64_t id = num_classes - 1; id >= 0; --id) {
    ids.push_back(id);
    centres.insert(centres.end(), dim, static_cast<float>(2 * id + 1));
  }
  const absl::Status status = client->WriteCentres(ids, centres);
  ASSERT_TRUE(status.ok()) << status;
  std::set<std::string> write_ids;
  for (int shard = 0; shard < 2; ++shard) {
    EXPECT_GE(cluster.requests(shard, "Stage").size(), 2u);
    EXPECT_THAT(cluster.requests(shard, "Stage"), Each(SizeIs(Le(kLargestMessage))));
    for (const auto& request : cluster.Requests<ccs::v1::WriteCentresRequest>(shard, "Stage")) {
      write_ids.insert(request.write_id());
    }
  }
  const auto commits = cluster.Requests<ccs::v1::WriteCentresRequest>(0, "Commit");
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].commit_rows(), num_classes);
  write_ids.insert(commits[0].write_id());
  EXPECT_EQ(write_ids.size(), 1u);
  const auto written = cluster.written();
  ASSERT_EQ(written.size(), ids.size());
  for (const auto& [id, row] : written) {
    ASSERT_EQ(row, std::vector<float>(dim, static_cast<float>(2 * id + 1))) << "of class " << id;
  }
  EXPECT_TRUE(*client->ReadCentres(ids) == centres);
}

INSTANTIATE_TEST_SUITE_P(Shapes, WriteLarge, testing::Values(std::pair(520, 4096), std::pair(20, 550'000)));

TEST(WriteCentres, EveryWriteHasAnIdOfItsOwnThatItsRetriesKeep) {
  FakeCluster cluster(1, 10, 2);
  cluster.Fail(0, "Stage", {grpc::UNAVAILABLE, "forming"});
  const auto client = ConnectTo(cluster);
  ASSERT_TRUE(client->WriteCentres(std::vector<int64_t>{3}, Ramp(2)).ok());
  ASSERT_TRUE(client->WriteCentres(std::vector<int64_t>{3}, Ramp(2)).ok());
  const auto stages = cluster.Requests<ccs::v1::WriteCentresRequest>(0, "Stage");
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0].SerializeAsString(), stages[1].SerializeAsString());
  EXPECT_NE(stages[1].write_id(), stages[2].write_id());
}

TEST(WriteCentres, TheCommitGoesToAnotherShardWhenOneIsUnavailable) {
  FakeCluster cluster(2, 10, 2);
  cluster.Fail(0, "Commit", {grpc::UNAVAILABLE, "forming"}, 1000);
  ASSERT_TRUE(ConnectTo(cluster)->WriteCentres(std::vector<int64_t>{3}, Ramp(2)).ok());
  EXPECT_EQ(cluster.requests(0, "Commit")[0], cluster.requests(1, "Commit")[0]);
}

TEST(WriteCentres, StagesAgainOnceWhenTheStagedRowsWereLost) {
  FakeCluster cluster(2, 10, 2);
  cluster.LoseStagedRows();
  const auto client = ConnectTo(cluster);
  const absl::Status status = client->WriteCentres(std::vector<int64_t>{8, 1}, Ramp(4));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(cluster.requests(0, "Stage").size(), 2u);
  EXPECT_EQ(cluster.requests(1, "Stage").size(), 2u);
  EXPECT_EQ(cluster.requests(0, "Stage")[0], cluster.requests(0, "Stage")[1]);
  EXPECT_EQ(cluster.commits(), 1);
  EXPECT_EQ(cluster.written().at(8), Ramp(2));
}

TEST(WriteCentres, OtherRefusalsOfTheCommitAreNotRetried) {
  FakeCluster cluster(1, 10, 2);
  cluster.Fail(0, "Commit", {grpc::FAILED_PRECONDITION, "draining"});
  const absl::Status status = ConnectTo(cluster)->WriteCentres(std::vector<int64_t>{8}, Ramp(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("draining"));
  EXPECT_EQ(cluster.requests(0, "Stage").size(), 1u);
}

TEST(WriteCentres, RefusesDuplicatesWrongSizesAndUnknownIdsLocally) {
  FakeCluster cluster(2, 10, 2);
  const auto client = ConnectTo(cluster);
  const absl::Status twice = client->WriteCentres(std::vector<int64_t>{8, 1, 8}, Ramp(6));
  EXPECT_EQ(twice.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(twice.message(), AllOf(HasSubstr("class id 8"), HasSubstr("place 2")));
  EXPECT_EQ(client->WriteCentres(std::vector<int64_t>{8}, Ramp(3)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->WriteCentres(std::vector<int64_t>{10}, Ramp(2)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(cluster.requests(0, "Stage").empty());
  EXPECT_TRUE(cluster.requests(1, "Stage").empty());
}

TEST(WriteCentres, IsOverByTheDeadline) {
  FakeCluster cluster(2, 10, 2);
  cluster.Hang(1, "Stage");
  const absl::Status status =
      ConnectTo(cluster, absl::Milliseconds(300))->WriteCentres(std::vector<int64_t>{1, 8}, Ramp(4));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cluster.commits(), 0);
}

}  // namespace
}  // namespace ccs::client
