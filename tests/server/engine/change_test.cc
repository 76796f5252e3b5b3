#include "server/engine/change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace ccs {
namespace {

TEST(ChangeTest, AStepComesBackBitForBit) {
  Slice slice;
  slice.trainer_rank = 3;
  slice.step = 12;
  slice.gradient_scale = 0.1f;
  slice.digest = std::numeric_limits<uint64_t>::max();
  slice.labels = {-1, int64_t{1} << 40};
  slice.features = {0.1f, -0.0f, std::numeric_limits<float>::denorm_min(), 3};
  StepChange change;
  change.operation.step = 12;
  change.operation.params = {.learning_rate = 0.3f, .scale = 7.7f, .margin = kernels::Margin{1, 0.2f, 0.3f}};
  change.operation.rows_per_rank = {2, 0, 5};
  change.slices.push_back(std::make_shared<const Slice>(slice));

  const auto decoded = DecodeChange(EncodeChange(change));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const auto& step = std::get<StepChange>(*decoded);
  EXPECT_EQ(step.operation.step, 12);
  EXPECT_EQ(step.operation.params, change.operation.params);
  EXPECT_EQ(step.operation.rows_per_rank, change.operation.rows_per_rank);
  ASSERT_EQ(step.slices.size(), 1u);
  EXPECT_EQ(step.slices[0]->trainer_rank, 3);
  EXPECT_EQ(step.slices[0]->gradient_scale, 0.1f);
  EXPECT_EQ(step.slices[0]->digest, slice.digest);
  EXPECT_EQ(step.slices[0]->labels, slice.labels);
  EXPECT_EQ(step.slices[0]->features, slice.features);
  EXPECT_EQ(EncodeChange(step), EncodeChange(change));
}

TEST(ChangeTest, AStepWithoutOwnRowsAndASpecsParamsComesBack) {
  StepChange change;
  change.operation.step = 1;
  change.operation.rows_per_rank = {0, 3};
  const auto decoded = DecodeChange(EncodeChange(change));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(std::get<StepChange>(*decoded).slices.empty());
  EXPECT_EQ(std::get<StepChange>(*decoded).operation.params, StepParams{});
}

TEST(ChangeTest, AWriteAndARunComeBack) {
  const WriteChange write{{"id \xfe", 5}, {{2, {1, 2}}, {9, {3, 4}}}};
  const auto decoded = DecodeChange(EncodeChange(write));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<WriteChange>(*decoded).write, write.write);
  EXPECT_EQ(std::get<WriteChange>(*decoded).rows, write.rows);

  const RunState run{"run", {0, 7}};
  const auto decoded_run = DecodeChange(EncodeChange(RunChange{run}));
  ASSERT_TRUE(decoded_run.ok()) << decoded_run.status();
  EXPECT_EQ(std::get<RunChange>(*decoded_run).run, run);
}

TEST(ChangeTest, AnythingElseIsDataLoss) {
  const std::string whole = EncodeChange(RunChange{{"run", {1}}});
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(DecodeChange(whole.substr(0, length)).status().code(), absl::StatusCode::kDataLoss) << length;
  }
}

TEST(ChangeTest, AnOriginComesBack) {
  const Origin none;
  EXPECT_EQ(DecodeOrigin(EncodeOrigin(none)).value(), none);
  const Origin origin{CheckpointId{1, 20, 99}, {{1, 31}, {2, 4, 33}}};
  EXPECT_EQ(DecodeOrigin(EncodeOrigin(origin)).value(), origin);
  EXPECT_EQ(
      origin.ToString(),
      "checkpoint 1-20-0000000000000063 and the log of lineage 1 up to record 31 and the log of lineage 2 "
      "up to record 4, step 33");
  EXPECT_EQ(DecodeOrigin("x").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ccs
