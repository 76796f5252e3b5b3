// The services in front of one real shard.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "server/rpc/tensor.h"
#include "tests/server/rpc/one_shard.h"
#include "tests/testing/http.h"

namespace ccs {
namespace {

using ::ccs::testing::MetricValue;
using ::ccs::testing::OneShard;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kDim = 4;
constexpr int kClasses = 10;

v1::ModelSpec Spec() {
  v1::ModelSpec spec;
  spec.set_num_classes(kClasses);
  spec.set_dim(kDim);
  spec.mutable_head()->mutable_cosface()->set_margin(0.2f);
  spec.set_max_batch(8);
  spec.set_seed(1);
  return spec;
}

v1::ErrorDetail Detail(const grpc::Status& status) {
  v1::RichStatus rich;
  v1::ErrorDetail detail;
  if (rich.ParseFromString(status.error_details()) && rich.details_size() == 1)
    rich.details(0).UnpackTo(&detail);
  return detail;
}

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest()
      : directory_(
            std::filesystem::path(::testing::TempDir()) /
            absl::StrCat("ccs-service-", ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(directory_);
    shard_.emplace(testing::OneShardOptions{.spec = Spec(), .checkpoint_dir = directory_});
  }
  ~ServiceTest() override {
    shard_.reset();
    std::filesystem::remove_all(directory_);
  }
  void SetUp() override { ASSERT_TRUE(shard_->Open()); }

  // Opens the run for `trainer` of `trainers` and returns a step of three rows, the next in order.
  v1::StepRequest OpenedStep(int trainer = 0, int trainers = 1) {
    v1::OpenRunRequest request;
    request.set_run_id("run");
    request.set_trainer_rank(trainer);
    request.set_num_trainers(trainers);
    request.set_start_nonce(77 + static_cast<uint64_t>(trainer));
    v1::OpenRunReply reply;
    grpc::ClientContext context;
    const grpc::Status status = shard_->training().OpenRun(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();

    v1::StepRequest step;
    step.set_run_id("run");
    step.set_incarnation(reply.incarnation());
    step.set_lineage(reply.position().lineage());
    step.set_trainer_rank(trainer);
    step.set_step(reply.position().step() + 1);
    step.mutable_params()->set_learning_rate(0.1f);
    EncodeTensor({1, 0, 0, 0, 0, 2, 0, 0, 0, 0, -3, 1}, kDim, step.mutable_features());
    for (const int label : {3, 5, -1}) step.add_labels(label);
    return step;
  }

  grpc::Status Step(const v1::StepRequest& request, v1::StepReply* reply,
                    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    return shard_->training().Step(&context, request, reply);
  }

  grpc::Status Step(const v1::StepRequest& request) {
    v1::StepReply reply;
    return Step(request, &reply);
  }

  v1::ReadCentresReply AllCentres() {
    v1::ReadCentresRequest request;
    for (int id = 0; id < kClasses; ++id) request.add_class_ids(id);
    request.set_with_momentum(true);
    v1::ReadCentresReply reply;
    grpc::ClientContext context;
    const grpc::Status status = shard_->training().ReadCentres(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  double Metric(const std::string& series) { return MetricValue(shard_->metrics(), series); }

  const std::filesystem::path directory_;
  std::optional<OneShard> shard_;
};

TEST(ServiceStartTest, CallsAreUnavailableUntilTheShardIsThere) {
  OneShard shard({.spec = Spec(), .checkpoint_dir = ""});
  v1::DescribeReply describe;
  grpc::ClientContext context;
  EXPECT_EQ(shard.training().Describe(&context, {}, &describe).error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::StatusReply status;
  grpc::ClientContext other;
  EXPECT_EQ(shard.admin().Status(&other, {}, &status).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(MetricValue(shard.metrics(), "ccs_requests_total{code=\"UNAVAILABLE\",method=\"Describe\"}"), 1);
}

TEST_F(ServiceTest, DescribeTellsModelLayoutAndPosition) {
  v1::DescribeReply reply;
  grpc::ClientContext context;
  ASSERT_TRUE(shard_->training().Describe(&context, {}, &reply).ok());
  EXPECT_EQ(reply.spec().num_classes(), kClasses);
  ASSERT_EQ(reply.layout().shards_size(), 1);
  EXPECT_EQ(reply.layout().shards(0).num_classes(), kClasses);
  EXPECT_EQ(reply.layout().shards(0).address(), "in-process");
  EXPECT_EQ(reply.position().step(), 0);
  EXPECT_NE(reply.position().lineage(), 0u);
  EXPECT_EQ(reply.version(), "test");
}

TEST_F(ServiceTest, AStepAnswersWithLossAndGradientAndMovesTheCentres) {
  const v1::ReadCentresReply before = AllCentres();
  const v1::StepRequest request = OpenedStep();
  v1::StepReply reply;
  const grpc::Status status = Step(request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.step(), 1);
  EXPECT_GT(reply.loss(), 0);
  EXPECT_EQ(reply.feature_grad().dtype(), v1::FLOAT32);
  EXPECT_EQ(reply.feature_grad().rows(), 3);
  EXPECT_EQ(reply.feature_grad().cols(), kDim);
  EXPECT_EQ(reply.statistics().batch_rows(), 3);
  EXPECT_EQ(reply.statistics().labelled_rows(), 2);
  EXPECT_EQ(reply.statistics().sampled_classes(), kClasses);
  EXPECT_EQ(reply.statistics().positives(), 2);
  const v1::ReadCentresReply after = AllCentres();
  EXPECT_EQ(after.position().step(), 1);
  EXPECT_NE(after.centres().data(), before.centres().data());
  EXPECT_NE(after.momentum().data(), before.momentum().data());
}

TEST_F(ServiceTest, ARepeatedStepGetsTheSameReplyAndIsNotAppliedAgain) {
  const v1::StepRequest request = OpenedStep();
  v1::StepReply first, second;
  ASSERT_TRUE(Step(request, &first).ok());
  const std::string centres = AllCentres().centres().data();
  ASSERT_TRUE(Step(request, &second).ok());
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
  EXPECT_EQ(AllCentres().centres().data(), centres);
}

TEST_F(ServiceTest, HalfPrecisionFeaturesGiveTheSameStep) {
  v1::StepRequest request = OpenedStep();
  v1::StepReply from_floats, from_halves;
  ASSERT_TRUE(Step(request, &from_floats).ok());

  shard_.emplace(testing::OneShardOptions{.spec = Spec(), .checkpoint_dir = ""});
  ASSERT_TRUE(shard_->Open());
  request = OpenedStep();
  std::string halves;
  for (size_t i = 0; i < request.features().data().size(); i += 4)
    halves += request.features().data().substr(i + 2, 2);
  request.mutable_features()->set_dtype(v1::BFLOAT16);
  request.mutable_features()->set_data(halves);
  ASSERT_TRUE(Step(request, &from_halves).ok());
  EXPECT_EQ(from_floats.feature_grad().data(), from_halves.feature_grad().data());
  EXPECT_EQ(from_floats.loss(), from_halves.loss());
}

TEST_F(ServiceTest, ABadStepIsRefusedWithItsReasonAndChangesNothing) {
  const v1::StepRequest good = OpenedStep();
  const v1::ReadCentresReply before = AllCentres();
  v1::StepRequest bad = good;
  bad.set_labels(1, kClasses);
  const grpc::Status status = Step(bad);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "label 10 of row 1 is outside [0, 10); -1 is unlabelled");
  EXPECT_EQ(Detail(status).reason(), "label_out_of_range");
  EXPECT_EQ(Metric("ccs_requests_rejected_total{reason=\"label_out_of_range\"}"), 1);
  EXPECT_EQ(Metric("ccs_requests_total{code=\"INVALID_ARGUMENT\",method=\"Step\"}"), 1);
  EXPECT_EQ(AllCentres().SerializeAsString(), before.SerializeAsString());
  EXPECT_TRUE(Step(good).ok());
  EXPECT_EQ(Metric("ccs_requests_total{code=\"OK\",method=\"Step\"}"), 1);
  EXPECT_EQ(Metric("ccs_request_duration_seconds_count{method=\"Step\"}"), 2);
}

TEST_F(ServiceTest, AnotherPayloadForAKnownStepIsRefused) {
  v1::StepRequest request = OpenedStep();
  ASSERT_TRUE(Step(request).ok());
  request.set_labels(0, 4);
  const grpc::Status status = Step(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Detail(status).reason(), "payload_differs");
  EXPECT_EQ(Metric("ccs_requests_rejected_total{reason=\"payload_differs\"}"), 1);
}

TEST_F(ServiceTest, AStepOutOfOrderIsRefusedWithTheExpectedOne) {
  v1::StepRequest request = OpenedStep();
  request.set_step(4);
  const grpc::Status status = Step(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Detail(status).expected_step(), 1);
  EXPECT_EQ(Detail(status).position().step(), 0);
}

TEST_F(ServiceTest, AnAbandonedLineageIsAbortedWithThePosition) {
  v1::StepRequest request = OpenedStep();
  const uint64_t lineage = request.lineage();
  request.set_lineage(lineage + 1000);
  const grpc::Status status = Step(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(Detail(status).position().lineage(), lineage);
  EXPECT_EQ(Metric("ccs_requests_rejected_total{reason=\"abandoned_lineage\"}"), 1);
}

TEST_F(ServiceTest, StepsNeedAnOpenRunAndItsLatestIncarnation) {
  v1::StepRequest request = OpenedStep();
  request.set_incarnation(request.incarnation() + 1);
  EXPECT_EQ(Step(request).error_code(), grpc::StatusCode::FAILED_PRECONDITION);

  v1::CloseRunRequest close;
  close.set_run_id("run");
  v1::CloseRunReply closed;
  grpc::ClientContext context;
  ASSERT_TRUE(shard_->training().CloseRun(&context, close, &closed).ok());
  const grpc::Status status = Step(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Detail(status).reason(), "run_not_open");
}

TEST_F(ServiceTest, AMissingTrainerIsNamedWhenTheTimeIsUp) {
  OpenedStep(1, 2);
  const v1::StepRequest request = OpenedStep(0, 2);
  v1::StepReply reply;
  const grpc::Status status = Step(request, &reply, std::chrono::milliseconds(1500));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(Detail(status).missing_trainers(), ElementsAre(1)) << status.error_message();
}

TEST_F(ServiceTest, CentresAreStagedCommittedAndReadBackAsWritten) {
  ASSERT_TRUE(Step(OpenedStep()).ok());
  v1::WriteCentresRequest stage;
  stage.set_write_id("w");
  stage.add_class_ids(7);
  stage.add_class_ids(2);
  const std::vector<float> values = {0, 0, 0, 5, 1, 2, 3, 4};
  EncodeTensor(values, kDim, stage.mutable_centres());
  v1::WriteCentresReply staged;
  grpc::ClientContext stage_context;
  ASSERT_TRUE(shard_->training().WriteCentres(&stage_context, stage, &staged).ok());
  EXPECT_EQ(staged.staged_rows(), 2);

  v1::WriteCentresRequest commit;
  commit.set_write_id("w");
  commit.set_commit_rows(3);
  v1::WriteCentresReply committed;
  grpc::ClientContext early_context;
  const grpc::Status early = shard_->training().WriteCentres(&early_context, commit, &committed);
  EXPECT_EQ(early.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Detail(early).reason(), "staged_rows_missing");

  commit.set_commit_rows(2);
  grpc::ClientContext commit_context;
  const grpc::Status status = shard_->training().WriteCentres(&commit_context, commit, &committed);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(committed.committed_rows(), 2);
  const v1::ReadCentresReply rows = AllCentres();
  EXPECT_EQ(rows.centres().data().substr(7 * kDim * 4, kDim * 4),
            std::string(reinterpret_cast<const char*>(values.data()), kDim * 4));
  EXPECT_EQ(rows.momentum().data().substr(7 * kDim * 4, kDim * 4), std::string(kDim * 4, '\0'));
}

TEST_F(ServiceTest, StagingMoreThanTheLimitIsRefused) {
  v1::WriteCentresRequest stage;
  for (int id = 0; id < kClasses; ++id) stage.add_class_ids(id);
  EncodeTensor(std::vector<float>(kClasses * kDim, 1.0f), kDim, stage.mutable_centres());
  grpc::StatusCode code = grpc::StatusCode::OK;
  for (int write = 0; write < 100 && code == grpc::StatusCode::OK; ++write) {
    stage.set_write_id(absl::StrCat("w", write));
    v1::WriteCentresReply reply;
    grpc::ClientContext context;
    code = shard_->training().WriteCentres(&context, stage, &reply).error_code();
  }
  EXPECT_EQ(code, grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServiceTest, NearestFindsACentreByItselfAndGivesAllClassesAtMost) {
  const std::vector<float> centres = *DecodeTensor(AllCentres().centres(), kDim, "centres");
  v1::NearestRequest request;
  request.set_k(kClasses + 5);
  EncodeTensor(absl::MakeSpan(centres).subspan(6 * kDim, kDim), kDim, request.mutable_queries());
  v1::NearestReply reply;
  grpc::ClientContext context;
  const grpc::Status status = shard_->training().Nearest(&context, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.k(), kClasses);
  ASSERT_EQ(reply.class_ids_size(), kClasses);
  EXPECT_EQ(reply.class_ids(0), 6);
  EXPECT_NEAR(reply.cosines(0), 1, 1e-6);
  EXPECT_TRUE(std::is_sorted(reply.cosines().rbegin(), reply.cosines().rend()));
}

TEST_F(ServiceTest, EvaluateCountsHitsAndChangesNothing) {
  const v1::ReadCentresReply before = AllCentres();
  const std::vector<float> centres = *DecodeTensor(before.centres(), kDim, "centres");
  v1::EvaluateRequest request;
  EncodeTensor(absl::MakeSpan(centres).subspan(0, 3 * kDim), kDim, request.mutable_features());
  for (const int label : {0, 2, -1}) request.add_labels(label);
  v1::EvaluateReply reply;
  grpc::ClientContext context;
  const grpc::Status status = shard_->training().Evaluate(&context, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.labelled_rows(), 2);
  EXPECT_EQ(reply.rank1_hits(), 1);
  EXPECT_GT(reply.loss(), 0);
  EXPECT_EQ(AllCentres().SerializeAsString(), before.SerializeAsString());
}

TEST_F(ServiceTest, AdminTellsStatusTakesCheckpointsAndListsThem) {
  ASSERT_TRUE(Step(OpenedStep()).ok());
  v1::CheckpointReply checkpoint;
  grpc::ClientContext checkpoint_context;
  const grpc::Status taken = shard_->admin().Checkpoint(&checkpoint_context, {}, &checkpoint);
  ASSERT_TRUE(taken.ok()) << taken.error_message();
  EXPECT_EQ(checkpoint.checkpoint().id().step(), 1);

  v1::ListCheckpointsReply list;
  grpc::ClientContext list_context;
  ASSERT_TRUE(shard_->admin().ListCheckpoints(&list_context, {}, &list).ok());
  ASSERT_EQ(list.checkpoints_size(), 1);
  EXPECT_EQ(list.checkpoints(0).id().SerializeAsString(), checkpoint.checkpoint().id().SerializeAsString());

  v1::StatusReply status;
  grpc::ClientContext status_context;
  ASSERT_TRUE(shard_->admin().Status(&status_context, {}, &status).ok());
  EXPECT_EQ(status.state(), v1::SERVING);
  EXPECT_EQ(status.position().step(), 1);
  EXPECT_EQ(status.run().run_id(), "run");
  ASSERT_EQ(status.shards_size(), 1);
  EXPECT_EQ(status.shards(0).info().num_classes(), kClasses);
}

TEST_F(ServiceTest, ACheckpointWithoutADirectoryIsRefused) {
  shard_.emplace(testing::OneShardOptions{.spec = Spec(), .checkpoint_dir = ""});
  ASSERT_TRUE(shard_->Open());
  v1::CheckpointReply reply;
  grpc::ClientContext context;
  const grpc::Status status = shard_->admin().Checkpoint(&context, {}, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("--checkpoint_dir"));
}

}  // namespace
}  // namespace ccs
