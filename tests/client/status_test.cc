#include "client/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/fake_cluster.h"

namespace ccs::client {
namespace {

TEST(FromGrpc, KeepsCodeMessageAndDetail) {
  ccs::v1::ErrorDetail detail;
  detail.set_reason("missing_trainers");
  detail.add_missing_trainers(3);
  const absl::Status status =
      FromGrpc(DetailedStatus(grpc::DEADLINE_EXCEEDED, "rank 3 is missing", detail), "shard 1");
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "shard 1: rank 3 is missing");
  const absl::Status longer = Append(status, "!");
  EXPECT_EQ(longer.message(), "shard 1: rank 3 is missing!");
  ASSERT_TRUE(DetailOf(longer).has_value());
  EXPECT_EQ(DetailOf(longer)->missing_trainers(0), 3);
  EXPECT_TRUE(FromGrpc(grpc::Status::OK, "shard 1").ok());
}

TEST(FromGrpc, IgnoresDetailsThatAreNotOurs) {
  const absl::Status status = FromGrpc({grpc::INTERNAL, "broken", "\xff\xff not a status"}, "shard 1");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(DetailOf(status).has_value());
}

TEST(MostInformative, PrefersARefusalToATimeOutToACancellation) {
  const absl::Status ok = absl::OkStatus();
  const absl::Status cancelled = absl::CancelledError("");
  const absl::Status unavailable = absl::UnavailableError("");
  const absl::Status deadline = absl::DeadlineExceededError("");
  const absl::Status missing =
      FromGrpc(DetailedStatus(grpc::DEADLINE_EXCEEDED, "rank 3", ccs::v1::ErrorDetail()), "shard 1");
  const absl::Status refused = absl::FailedPreconditionError("");
  const absl::Status aborted = absl::AbortedError("");
  const std::vector<absl::Status> ascending = {ok,      cancelled, unavailable, deadline,
                                               missing, refused,   aborted};
  for (size_t i = 0; i < ascending.size(); ++i) {
    for (size_t j = 0; j < ascending.size(); ++j) {
      const std::vector<absl::Status> pair = {ascending[i], ascending[j]};
      EXPECT_EQ(MostInformative(pair), ascending[std::max(i, j)]);
    }
  }
}

}  // namespace
}  // namespace ccs::client
