// Steps of a run, against shards that answer, fail, vanish or keep silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/layout.h"
#include "tests/client/connected.h"

namespace ccs::client {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kDim = 3;
const grpc::Status kUnavailable(grpc::UNAVAILABLE, "forming");

// A step of `rows` rows with its own storage.
struct Batch {
  explicit Batch(size_t rows) : features(Ramp(rows * kDim)), labels(rows) {
    std::iota(labels.begin(), labels.end(), -1);
  }
  StepInput input() const { return {.features = features, .labels = labels, .learning_rate = 0.1f}; }

  std::vector<float> features;
  std::vector<int64_t> labels;
};

TEST(Step, PartsReachTheirHomesAndTheGradientComesBackInOrder) {
  for (int shards = 1; shards <= 5; ++shards) {
    FakeCluster cluster(shards, 100, kDim);
    const auto client = ConnectTo(cluster);
    for (int trainers = 1; trainers <= 4; ++trainers) {
      std::vector<size_t> asked(shards);  // so far
      for (int shard = 0; shard < shards; ++shard) asked[shard] = cluster.requests(shard, "Step").size();
      for (int trainer = 0; trainer < trainers; ++trainer) {
        SCOPED_TRACE(testing::Message() << shards << " shards, trainer " << trainer << " of " << trainers);
        const auto run = Open(*client, {.trainer_rank = trainer, .num_trainers = trainers});
        for (const size_t rows : {7, 1, 0}) {
          const Batch batch(rows);
          const auto result = run->Step(batch.input());
          ASSERT_TRUE(result.ok()) << result.status();
          std::vector<float> expected = batch.features;
          for (float& value : expected) value *= static_cast<float>(trainers);
          EXPECT_EQ(result->feature_grad, expected);
          EXPECT_EQ(result->loss, 1.5);
          int64_t sampled = 0;
          for (const Part& part : SplitRows(trainer, trainers, shards, rows)) {
            const auto requests = cluster.Requests<ccs::v1::StepRequest>(part.shard, "Step");
            ASSERT_EQ(requests.size(), ++asked[part.shard]);
            const ccs::v1::StepRequest& request = requests.back();
            EXPECT_EQ(request.trainer_rank(), trainer);
            EXPECT_EQ(request.features().rows(), part.rows);
            EXPECT_EQ(request.features().cols(), kDim);
            EXPECT_EQ(std::vector<int64_t>(request.labels().begin(), request.labels().end()),
                      std::vector<int64_t>(batch.labels.begin() + part.first_row,
                                           batch.labels.begin() + part.first_row + part.rows));
            sampled += 10 + part.shard;
          }
          EXPECT_EQ(result->sampled_classes, sampled);
        }
      }
      for (int shard = 0; shard < shards; ++shard) {
        EXPECT_EQ(cluster.requests(shard, "Step").size(), asked[shard]) << "of shard " << shard;
      }
    }
  }
}

TEST(Step, CarriesTheRunThePositionAndTheParameters) {
  FakeCluster cluster(1, 100, kDim);
  const auto run =
      Open(*ConnectTo(cluster),
           {.run_id = "glyphs", .trainer_rank = 1, .num_trainers = 4, .scale_gradient_by_trainers = false});
  const Batch batch(2);
  StepInput input = batch.input();
  input.margin = Margin{.m1 = 1, .m2 = 0.5f, .m3 = 0.25f};
  input.scale = 48;
  input.checkpoint = true;
  ASSERT_TRUE(run->Step(input).ok());
  ASSERT_TRUE(run->Step(batch.input()).ok());
  const auto requests = cluster.Requests<ccs::v1::StepRequest>(0, "Step");
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].run_id(), "glyphs");
  EXPECT_EQ(requests[0].incarnation(), 77u);
  EXPECT_EQ(requests[0].lineage(), kLineage);
  EXPECT_EQ(requests[0].step(), kStep + 1);
  EXPECT_EQ(requests[0].gradient_scale(), 1);
  EXPECT_EQ(requests[0].params().learning_rate(), 0.1f);
  EXPECT_EQ(requests[0].params().scale(), 48);
  EXPECT_EQ(requests[0].params().margin().m2(), 0.5f);
  EXPECT_EQ(requests[0].params().margin().m3(), 0.25f);
  EXPECT_TRUE(requests[0].params().checkpoint());
  EXPECT_EQ(requests[0].features().dtype(), ccs::v1::FLOAT32);
  EXPECT_EQ(requests[0].features().data(),
            std::string(reinterpret_cast<const char*>(batch.features.data()), batch.features.size() * 4));
  EXPECT_EQ(requests[1].step(), kStep + 2);
  EXPECT_FALSE(requests[1].params().has_scale());
  EXPECT_FALSE(requests[1].params().has_margin());
  EXPECT_FALSE(requests[1].params().checkpoint());
  EXPECT_EQ(run->position().step, kStep + 2);
  EXPECT_EQ(run->position().lineage, kLineage);
}

TEST(Step, OfATrainerThatLostItsLastReplyIsThatStepAgain) {
  FakeCluster cluster(1, 100, kDim);
  const auto client = ConnectTo(cluster);
  const Batch batch(2);
  for (const int64_t behind : {0, 1}) {
    const auto run = Open(*client, {.last_result = kStep - behind});
    EXPECT_EQ(run->position().step, kStep - behind);
    ASSERT_TRUE(run->Step(batch.input()).ok());
    EXPECT_EQ(cluster.Requests<ccs::v1::StepRequest>(0, "Step").back().step(), kStep - behind + 1);
  }
  for (const int64_t elsewhere : {kStep + 1, kStep - 2}) {
    const auto refused = client->OpenRun({.last_result = elsewhere});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
    EXPECT_THAT(std::string(refused.status().message()),
                AllOf(HasSubstr(absl::StrCat("step ", elsewhere)), HasSubstr(absl::StrCat("step ", kStep))));
  }
}

TEST(Step, SendsItsPartsConcurrently) {
  FakeCluster cluster(3, 100, kDim);
  cluster.AnswerStepsTogether(3);
  const auto run = Open(*ConnectTo(cluster));
  const auto result = run->Step(Batch(5).input());
  EXPECT_TRUE(result.ok()) << result.status();
}

TEST(Step, RetriesUnavailableWithTheSameBytes) {
  FakeCluster cluster(2, 100, kDim);
  cluster.Fail(1, "Step", kUnavailable, 3);
  const auto run = Open(*ConnectTo(cluster));
  const auto result = run->Step(Batch(5).input());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->feature_grad, Ramp(5 * kDim));
  const std::vector<std::string> requests = cluster.requests(1, "Step");
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_THAT(requests, Each(requests[0]));
  EXPECT_EQ(cluster.requests(0, "Step").size(), 1u);
}

TEST(Step, IsSentAgainAfterItsReplyWasLostWithTheConnection) {
  FakeCluster cluster(1, 100, kDim);
  cluster.Hang(0, "Step");
  const auto run = Open(*ConnectTo(cluster));
  const Batch batch(5);
  auto result = run->StepAsync(batch.input());
  cluster.AwaitRequests(0, "Step", 1);
  cluster.Stop(0);
  cluster.Release();
  cluster.Start(0);
  const auto step = result.get();
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->feature_grad, batch.features);
  const std::vector<std::string> requests = cluster.requests(0, "Step");
  EXPECT_EQ(requests.size(), 2u);
  EXPECT_THAT(requests, Each(requests[0]));
}

TEST(Step, FindsAShardThatComesBackElsewhere) {
  for (const int moved : {0, 1}) {
    FakeCluster cluster(2, 100, kDim);
    const auto client = ConnectTo(cluster);
    const auto run = Open(*client);
    const std::string former = cluster.address(moved);
    cluster.Stop(moved);
    const Batch batch(5);
    auto result = run->StepAsync(batch.input());
    cluster.AwaitRequests(1 - moved, "Describe", moved == 0 ? 1 : 2);  // one was for Connect, of shard 0
    cluster.StartElsewhere(moved);
    ASSERT_NE(cluster.address(moved), former);
    const auto step = result.get();
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_EQ(step->feature_grad, batch.features);
    EXPECT_EQ(cluster.requests(moved, "Step").size(), 1u);
    // Whoever was connected before finds it too, by a shard or by the address given.
    EXPECT_TRUE(client->ReadCentres(std::vector<int64_t>{10, 60}).ok());
  }
}

TEST(Step, ReturnsByItsDeadlineWhenAShardIsGoneAndNobodyKnowsWhere) {
  FakeCluster cluster(2, 100, kDim);
  const auto run = Open(*ConnectTo(cluster, absl::Seconds(2)));
  cluster.Hang(0, "Describe");
  cluster.Stop(1);
  const absl::Time start = absl::Now();
  const auto result = run->Step(Batch(5).input());
  EXPECT_TRUE(absl::IsUnavailable(result.status()) || absl::IsDeadlineExceeded(result.status()))
      << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("shard 1 (" + cluster.address(1) + ")"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(4));
  cluster.Release();
}

TEST(Step, AllPartsAndRepetitionsOfACallHaveItsNumberAndTheNextCallAHigherOne) {
  FakeCluster cluster(2, 100, kDim);
  const auto run = Open(*ConnectTo(cluster));
  cluster.Fail(1, "Step", grpc::Status(grpc::StatusCode::UNAVAILABLE, "forming"));
  ASSERT_TRUE(run->Step(Batch(5).input()).ok());
  ASSERT_TRUE(run->Step(Batch(5).input()).ok());
  const auto calls = [&cluster](int shard) {
    std::vector<int64_t> numbers;
    for (const auto& request : cluster.Requests<ccs::v1::StepRequest>(shard, "Step")) {
      numbers.push_back(request.call());
    }
    return numbers;
  };
  EXPECT_THAT(calls(0), ElementsAre(1, 2));
  EXPECT_THAT(calls(1), ElementsAre(1, 1, 2));
}

TEST(Step, ReturnsByItsDeadlineWhenAShardNeverAnswers) {
  FakeCluster cluster(2, 100, kDim);
  cluster.Hang(1, "Step");
  const auto run = Open(*ConnectTo(cluster, absl::Milliseconds(300)));
  const absl::Time start = absl::Now();
  const auto result = run->Step(Batch(5).input());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("shard 1 (" + cluster.address(1) + ")"));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(300));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(run->position().step, kStep);
}

TEST(Step, ReturnsUnavailableWhenAShardIsStillAwayAtTheDeadline) {
  FakeCluster cluster(1, 100, kDim);
  const auto run = Open(*ConnectTo(cluster, absl::Milliseconds(400)));
  cluster.Fail(0, "Step", kUnavailable, 1000);
  const absl::Time start = absl::Now();
  const auto result = run->Step(Batch(5).input());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
  EXPECT_THAT(result.status().message(), AllOf(HasSubstr("forming"), HasSubstr("attempts")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_GE(cluster.requests(0, "Step").size(), 2u);
}

TEST(Step, EveryRefusalReturnsAtOnceWithItsMessage) {
  for (const grpc::StatusCode code :
       {grpc::INVALID_ARGUMENT, grpc::FAILED_PRECONDITION, grpc::DEADLINE_EXCEEDED, grpc::ABORTED,
        grpc::RESOURCE_EXHAUSTED, grpc::NOT_FOUND, grpc::UNAUTHENTICATED, grpc::PERMISSION_DENIED,
        grpc::INTERNAL, grpc::CANCELLED}) {
    FakeCluster cluster(1, 100, kDim);
    cluster.Fail(0, "Step", {code, "row 3 is wrong"});
    const auto run = Open(*ConnectTo(cluster));
    const auto result = run->Step(Batch(5).input());
    EXPECT_EQ(static_cast<int>(result.status().code()), static_cast<int>(code));
    EXPECT_THAT(result.status().message(), HasSubstr("row 3 is wrong"));
    EXPECT_EQ(cluster.requests(0, "Step").size(), 1u);
    EXPECT_EQ(run->position().step, kStep);
    // A corrected input is the same step.
    EXPECT_TRUE(run->Step(Batch(5).input()).ok());
    EXPECT_EQ(run->position().step, kStep + 1);
  }
}

TEST(Step, ARefusalOfOnePartEndsTheWaitOfTheOthersAndIsWhatIsReturned) {
  FakeCluster cluster(3, 100, kDim);
  cluster.Hang(0, "Step");
  cluster.Hang(2, "Step");
  cluster.Fail(1, "Step", {grpc::INVALID_ARGUMENT, "label 200 is outside"});
  const auto run = Open(*ConnectTo(cluster));
  const absl::Time start = absl::Now();
  const auto result = run->Step(Batch(5).input());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
  EXPECT_THAT(result.status().message(), HasSubstr("label 200 is outside"));
  EXPECT_LT(absl::Now() - start, kAmple / 2);
}

TEST(Step, AbortedSaysWhereTheClusterStandsAndWhatToDo) {
  FakeCluster cluster(1, 100, kDim);
  ccs::v1::ErrorDetail detail;
  detail.mutable_position()->set_lineage(99);
  detail.mutable_position()->set_step(4);
  cluster.Fail(0, "Step", DetailedStatus(grpc::ABORTED, "the lineage is abandoned", detail));
  const auto run = Open(*ConnectTo(cluster));
  const auto result = run->Step(Batch(1).input());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(result.status().message(),
              AllOf(HasSubstr("the lineage is abandoned"), HasSubstr("step 4 of lineage 99"),
                    HasSubstr("open the run again")));
  const auto position = PositionFromStatus(result.status());
  ASSERT_TRUE(position.has_value());
  EXPECT_EQ(position->lineage, 99u);
  EXPECT_EQ(position->step, 4);
  EXPECT_FALSE(PositionFromStatus(absl::AbortedError("no detail")).has_value());
}

TEST(Step, WrongSizesAreRefusedBeforeAnythingIsSent) {
  FakeCluster cluster(2, 100, kDim);
  const auto run = Open(*ConnectTo(cluster));
  Batch batch(4);
  batch.features.pop_back();
  const auto result = run->Step(batch.input());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(result.status().message(),
              AllOf(HasSubstr("11 values"), HasSubstr("4 rows of width 3"), HasSubstr("12")));
  EXPECT_TRUE(cluster.requests(0, "Step").empty());
  EXPECT_TRUE(cluster.requests(1, "Step").empty());
}

TEST(StepAsync, StepsAreTakenInOrder) {
  FakeCluster cluster(2, 100, kDim);
  const auto run = Open(*ConnectTo(cluster));
  std::vector<Batch> batches;
  for (size_t rows = 1; rows <= 6; ++rows) batches.emplace_back(rows);
  std::vector<std::future<absl::StatusOr<StepResult>>> results;
  for (const Batch& batch : batches) results.push_back(run->StepAsync(batch.input()));
  for (size_t i = 0; i < results.size(); ++i) {
    const auto result = results[i].get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->step, kStep + 1 + static_cast<int64_t>(i));
    EXPECT_EQ(result->feature_grad, batches[i].features);
  }
}

TEST(StepAsync, StepsBehindAFailedOneAreRefused) {
  FakeCluster cluster(1, 100, kDim);
  cluster.Hang(0, "Step");
  cluster.Fail(0, "Step", {grpc::INVALID_ARGUMENT, "not finite"});
  const auto run = Open(*ConnectTo(cluster));
  const Batch batch(2);
  auto first = run->StepAsync(batch.input());
  auto second = run->StepAsync(batch.input());
  cluster.Release();
  EXPECT_EQ(first.get().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(second.get().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(run->Step(batch.input()).ok());
}

TEST(StepAsync, DestroyingTheRunWaitsForTheStepAtMostUntilItsDeadline) {
  FakeCluster cluster(2, 100, kDim);
  cluster.Hang(0, "Step");
  auto client = ConnectTo(cluster, absl::Milliseconds(300));
  auto run = Open(*client);
  client.reset();  // the run outlives it
  const Batch batch(4);
  auto result = run->StepAsync(batch.input());
  const absl::Time start = absl::Now();
  run.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  ASSERT_EQ(result.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_EQ(result.get().status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(StepAsync, TheFutureMayBeDroppedWithoutWaiting) {
  FakeCluster cluster(1, 100, kDim);
  cluster.Hang(0, "Step");
  const auto run = Open(*ConnectTo(cluster));
  const Batch batch(4);
  run->StepAsync(batch.input());
  cluster.AwaitRequests(0, "Step", 1);  // it is still waiting
  cluster.Release();
}

TEST(OpenRun, ChoosesANonceForEachStartAndKeepsItWhenRetrying) {
  FakeCluster cluster(2, 100, kDim);
  cluster.Fail(0, "OpenRun", kUnavailable);
  const auto client = ConnectTo(cluster);
  Open(*client, {.run_id = "r", .trainer_rank = 1, .num_trainers = 2});
  Open(*client, {.run_id = "r", .trainer_rank = 1, .num_trainers = 2});
  const auto at_0 = cluster.Requests<ccs::v1::OpenRunRequest>(0, "OpenRun");
  const auto at_1 = cluster.Requests<ccs::v1::OpenRunRequest>(1, "OpenRun");
  ASSERT_EQ(at_0.size(), 2u);
  ASSERT_EQ(at_1.size(), 1u);
  EXPECT_EQ(at_0[0].SerializeAsString(), at_1[0].SerializeAsString());
  EXPECT_NE(at_0[0].start_nonce(), at_0[1].start_nonce());
  EXPECT_EQ(at_0[0].run_id(), "r");
  EXPECT_EQ(at_0[0].trainer_rank(), 1);
  EXPECT_EQ(at_0[0].num_trainers(), 2);
}

TEST(OpenRun, RefusesRanksThatMakeNoSense) {
  FakeCluster cluster(1, 100, kDim);
  const auto client = ConnectTo(cluster);
  for (const auto& [rank, trainers] : std::vector<std::pair<int, int>>{{-1, 2}, {2, 2}, {0, 0}}) {
    const auto run = client->OpenRun({.trainer_rank = rank, .num_trainers = trainers});
    EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(client->OpenRun({.run_id = ""}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(cluster.requests(0, "OpenRun").empty());
}

TEST(Close, EndsTheRunAtAnyShard) {
  FakeCluster cluster(2, 100, kDim);
  cluster.Fail(0, "CloseRun", kUnavailable);
  const auto run = Open(*ConnectTo(cluster), {.run_id = "glyphs"});
  EXPECT_TRUE(run->Close().ok());
  const auto requests = cluster.Requests<ccs::v1::CloseRunRequest>(1, "CloseRun");
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].run_id(), "glyphs");
}

}  // namespace
}  // namespace ccs::client
