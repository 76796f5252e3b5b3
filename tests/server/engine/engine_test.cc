#include "server/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/engine/engine_shard.h"

namespace ccs::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EngineTest, AnEpochStartsFromInitialWeights) {
  const auto shard = OneShard();
  shard->Start();
  const auto formed = shard->control.WaitFormed();
  EXPECT_EQ(formed.epoch, 1u);
  EXPECT_TRUE(formed.status.ok()) << formed.status;
  EXPECT_THAT(shard->backend->calls(), ElementsAre("InitialiseRows"));
}

TEST(EngineTest, AStepRunsInOrderAndAnswersBeforePassTwo) {
  std::promise<void> answered;
  const auto shard = OneShard([&](const std::string& call) {
    if (call == "Pass2") answered.get_future().wait();  // never returns if the answer came only afterwards
    return absl::OkStatus();
  });
  shard->Start();
  auto reply = shard->Submit(0, 1, {2, -1}, 5);
  shard->Go(1, {2}, {0});
  const auto got = reply.Get();
  answered.set_value();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ((*got)->step, 1);
  EXPECT_EQ((*got)->loss, 1);
  EXPECT_THAT((*got)->feature_grad, ElementsAre(5, 5, 5, 5));
  EXPECT_EQ((*got)->statistics.batch_rows, 2);
  EXPECT_EQ((*got)->statistics.labelled_rows, 1);
  EXPECT_EQ((*got)->statistics.sampled_classes, 6);
  EXPECT_EQ((*got)->statistics.positives, 1);
  const CentreRows rows = shard->Centres({0, 5});
  EXPECT_THAT(rows.centres, Each(0.5f));
  EXPECT_EQ(rows.position.step, 1);
  EXPECT_THAT(shard->backend->calls(), ElementsAre("InitialiseRows", "SetBatch", "Pass1", "Combine",
                                                   "FinishFeatureGradient", "Pass2"));
  const EngineProgress progress = shard->engine->progress();
  EXPECT_EQ(progress.step, 1);
  EXPECT_EQ(progress.loss, 1);
  EXPECT_GT(progress.progress, 5u);
}

TEST(EngineTest, EverySliceGetsItsOwnRowsTimesItsOwnScale) {
  const auto shard = OneShard();
  shard->Start(std::nullopt, 3);
  auto a = shard->Submit(0, 1, {1}, 5);
  auto b = shard->Submit(1, 1, {}, 6);
  auto c = shard->Submit(2, 1, {2, 3}, 7);
  shard->Go(1, {3}, {0, 1, 2});
  EXPECT_THAT((*a.Get())->feature_grad, ElementsAre(5, 5));
  EXPECT_THAT((*b.Get())->feature_grad, IsEmpty());
  EXPECT_THAT((*c.Get())->feature_grad, Each(21));
  EXPECT_THAT(shard->backend->labels(), ElementsAre(1, 2, 3));
}

TEST(EngineTest, RowsAreGatheredInRankOrderAndEachShardAnswersItsOwn) {
  auto collectives = MakeInProcessCollectives(2);
  EngineShard zero(0, 2, std::move(collectives[0]));
  EngineShard one(1, 2, std::move(collectives[1]));
  zero.Start(std::nullopt, 2);
  one.Start(std::nullopt, 2);
  auto a = zero.Submit(0, 1, {1, 4}, 5);
  auto b = one.Submit(1, 1, {3}, 6);
  zero.Go(1, {2, 1}, {0});
  one.Go(1, {2, 1}, {1});
  const auto from_zero = a.Get().value();
  const auto from_one = b.Get().value();
  EXPECT_EQ(from_zero->loss, 2);
  EXPECT_EQ(from_one->loss, 2);
  EXPECT_THAT(from_zero->feature_grad, ElementsAre(10, 10, 10, 10));  // both shards' share
  EXPECT_THAT(from_one->feature_grad, ElementsAre(24, 24));           // times gradient_scale 2
  EXPECT_EQ(from_zero->statistics.positives, 1);
  EXPECT_EQ(from_one->statistics.positives, 2);
  one.Centres({3});
  EXPECT_EQ(one.backend->finished_rows(), std::make_pair(2, 1));
  EXPECT_THAT(one.backend->labels(), ElementsAre(1, 4, 3));
}

TEST(EngineTest, AStepMayOverrideScaleAndMarginForItself) {
  const auto shard = OneShard();
  shard->Start();
  auto reply = shard->Submit(0, 1, {1}, 5);
  StepOperation operation;
  operation.step = 1;
  operation.params.scale = 30.0f;
  operation.params.margin = kernels::Margin{1, 0, 0.25f};
  operation.rows_per_rank = {1};
  operation.slices = {{0, 1}};
  ASSERT_TRUE(shard->assembler->ChooseSlices(operation).ok());
  shard->engine->Enqueue(1, operation);
  ASSERT_TRUE(reply.Get().ok());
  shard->EndEpoch();
  EXPECT_EQ(shard->backend->head().scale, 30.0f);
  EXPECT_EQ(shard->backend->head().margin.m3, 0.25f);

  shard->next_collective = std::move(MakeInProcessCollectives(1)[0]);
  shard->Start();
  auto next = shard->Submit(0, 1, {1}, 5);
  shard->Go(1, {1}, {0});
  ASSERT_TRUE(next.Get().ok());
  shard->EndEpoch();
  EXPECT_EQ(shard->backend->head().scale, 64.0f) << "the spec's again";
  EXPECT_EQ(shard->backend->head().margin.m3, 0.0f);
}

TEST(EngineTest, TheSampledRowsMayBeGiven) {
  auto shard = OneShard();
  shard->options.sampled_rows = [](int64_t step) { return std::vector<int64_t>{step, 4}; };
  shard->Start();
  auto reply = shard->Submit(0, 1, {1}, 5);
  shard->Go(1, {1}, {0});
  EXPECT_EQ((*reply.Get())->statistics.sampled_classes, 2);
  shard->EndEpoch();
  std::vector<float> weight(6 * kDim);
  ASSERT_TRUE(shard->backend->ReadRows(0, 6, weight.data(), nullptr).ok());
  EXPECT_THAT(weight, ElementsAre(1, 1, 0.5, 0.5, 1, 1, 1, 1, 0.5, 0.5, 1, 1));
}

TEST(EngineTest, AnErrorAfterGoEndsTheEpochOnce) {
  const auto shard = OneShard([](const std::string& call) {
    return call == "Pass1" ? absl::InternalError("broken device") : absl::OkStatus();
  });
  shard->Start();
  auto reply = shard->Submit(0, 1, {1}, 5);
  shard->Go(1, {1}, {0});
  EXPECT_EQ(shard->control.WaitFailure().message(), "broken device");
  shard->engine->Enqueue(7, CheckpointOperation{});
  Awaited<CentreRows> read;
  shard->engine->ReadCentres({0}, false, read.done());
  EXPECT_EQ(read.Get().status().code(), absl::StatusCode::kUnavailable);
  shard->assembler->EndEpoch(absl::UnavailableError("over"));
  shard->engine->EndEpoch(absl::UnavailableError("over"));
  EXPECT_EQ(reply.Get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(shard->control.num_failures(), 1u);
  EXPECT_THAT(shard->store.stored(), IsEmpty());
}

TEST(EngineTest, AStepWithOtherRowsThanAnnouncedEndsTheEpoch) {
  const auto shard = OneShard();
  shard->Start();
  shard->Submit(0, 1, {1}, 5);
  shard->Go(1, {2}, {0});
  EXPECT_EQ(shard->control.WaitFailure().code(), absl::StatusCode::kInternal);
}

TEST(EngineTest, ACollectiveThatTakesTooLongEndsTheEpoch) {
  auto collectives = MakeInProcessCollectives(2);
  EngineShard shard(0, 2, std::move(collectives[0]));
  shard.options.collective_timeout = absl::Milliseconds(20);
  shard.Start();
  shard.Submit(0, 1, {1}, 5);
  shard.Go(1, {1, 0}, {0});
  EXPECT_EQ(shard.control.WaitFailure().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(EngineTest, EndingTheEpochWakesAWaitingCollectiveAndIsNoFailure) {
  auto collectives = MakeInProcessCollectives(2);
  EngineShard shard(0, 2, std::move(collectives[0]));
  shard.Start();
  shard.control.WaitFormed();
  auto reply = shard.Submit(0, 1, {1}, 5);
  shard.Go(1, {1, 0}, {0});
  shard.engine->EndEpoch(absl::UnavailableError("over"));
  EXPECT_EQ(shard.control.num_failures(), 0u);
  EXPECT_EQ(shard.engine->progress().step, 0);
  shard.assembler->EndEpoch(absl::UnavailableError("over"));
  EXPECT_FALSE(reply.Get().ok());
}

TEST(EngineTest, EndingTheEpochAnswersWhatWaits) {
  std::promise<void> go_on;
  const auto shard = OneShard([wait = go_on.get_future().share()](const std::string& call) {
    if (call == "Pass1") wait.wait();
    return absl::OkStatus();
  });
  shard->Start();
  shard->Submit(0, 1, {1}, 5);
  shard->Go(1, {1}, {0});
  Awaited<EvaluateResult> evaluate;
  Awaited<NearestResult> nearest;
  shard->engine->AddEvaluate({1, 1}, {1}, evaluate.done());
  shard->engine->AddNearest({1, 1}, nearest.done());
  std::thread end([&] { shard->engine->EndEpoch(absl::UnavailableError("over")); });
  go_on.set_value();
  end.join();
  EXPECT_EQ(evaluate.Get().status().message(), "over");
  EXPECT_EQ(nearest.Get().status().message(), "over");
}

TEST(EngineTest, AGroupThatCannotConnectSaysWhy) {
  EngineShard shard(0, 2, nullptr);
  shard.Start();
  EXPECT_EQ(shard.control.WaitFormed().status.message(), "no peers");
  EXPECT_EQ(shard.control.num_failures(), 0u);
}

}  // namespace
}  // namespace ccs::testing
