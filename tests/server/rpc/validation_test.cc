#include "server/rpc/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "server/engine/error_info.h"
#include "server/rpc/tensor.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kDim = 4;
constexpr int64_t kClasses = 103;

// Shard 1 of 2: classes [52, 103).
RequestRules Rules() {
  RequestRules rules;
  rules.spec.num_classes = kClasses;
  rules.spec.dim = kDim;
  rules.spec.max_batch = 8;
  rules.rank = 1;
  rules.num_shards = 2;
  rules.has_checkpoint_dir = true;
  rules.max_message_bytes = 20 * kDim * 4;
  return rules;
}

v1::Tensor Ones(int64_t rows, int64_t cols = kDim) {
  v1::Tensor tensor;
  EncodeTensor(std::vector<float>(static_cast<size_t>(rows * cols), 1.0f), cols, &tensor);
  return tensor;
}

v1::StepRequest ValidStep() {
  v1::StepRequest request;
  request.set_run_id("run");
  request.set_incarnation(5);
  request.set_lineage(3);
  request.set_trainer_rank(1);
  request.set_step(12);
  request.mutable_params()->set_learning_rate(0.1f);
  *request.mutable_features() = Ones(3);
  for (const int64_t label : {int64_t{0}, int64_t{-1}, kClasses - 1}) request.add_labels(label);
  return request;
}

void ExpectRefusal(const absl::Status& status, absl::StatusCode code, const std::string& reason,
                   const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  ASSERT_TRUE(info) << status;
  EXPECT_EQ(info->reason, reason);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

void ExpectInvalid(const absl::Status& status, const std::string& reason, const std::string& message) {
  ExpectRefusal(status, absl::StatusCode::kInvalidArgument, reason, message);
}

class ValidationTest : public ::testing::Test {
 protected:
  // The refusal of a valid step that `spoil` has been at.
  template <typename Spoil>
  absl::Status Step(Spoil spoil) const {
    v1::StepRequest request = ValidStep();
    spoil(request);
    return validator_.Step(request).status();
  }

  RequestValidator validator_{Rules()};
};

TEST_F(ValidationTest, AStepBecomesASlice) {
  v1::StepRequest request = ValidStep();
  request.mutable_params()->set_scale(32);
  request.mutable_params()->mutable_margin()->set_m1(1);
  request.mutable_params()->mutable_margin()->set_m3(0.25f);
  request.mutable_params()->set_checkpoint(true);
  request.set_gradient_scale(2);
  const absl::StatusOr<Slice> slice = validator_.Step(request);
  ASSERT_TRUE(slice.ok()) << slice.status();
  EXPECT_EQ(slice->run_id, "run");
  EXPECT_EQ(slice->incarnation, 5u);
  EXPECT_EQ(slice->lineage, 3u);
  EXPECT_EQ(slice->trainer_rank, 1);
  EXPECT_EQ(slice->step, 12);
  EXPECT_EQ(slice->params.learning_rate, 0.1f);
  EXPECT_EQ(slice->params.scale, 32);
  EXPECT_EQ(slice->params.margin, (kernels::Margin{.m1 = 1, .m2 = 0, .m3 = 0.25f}));
  EXPECT_TRUE(slice->params.checkpoint);
  EXPECT_EQ(slice->gradient_scale, 2);
  EXPECT_EQ(slice->features, std::vector<float>(12, 1.0f));
  EXPECT_THAT(slice->labels, ElementsAre(0, -1, kClasses - 1));
}

TEST_F(ValidationTest, TheDigestTellsPayloadsApart) {
  const uint64_t digest = validator_.Step(ValidStep())->digest;
  EXPECT_EQ(validator_.Step(ValidStep())->digest, digest);
  v1::StepRequest other = ValidStep();
  other.set_labels(1, 0);
  EXPECT_NE(validator_.Step(other)->digest, digest);
  other = ValidStep();
  other.set_gradient_scale(1);  // what absent means
  EXPECT_EQ(validator_.Step(other)->digest, digest);
}

TEST_F(ValidationTest, AStepWithoutRowsIsValid) {
  v1::StepRequest request = ValidStep();
  request.clear_features();
  request.clear_labels();
  EXPECT_EQ(validator_.Step(request)->rows(), 0);
}

TEST_F(ValidationTest, FeaturesAreRefusedByShapeAndValue) {
  ExpectInvalid(Step([](auto& r) { *r.mutable_features() = Ones(3, 5); }), "wrong_dim",
                "features have 5 columns; the model's dim is 4");
  ExpectInvalid(Step([](auto& r) { r.mutable_features()->set_dtype(v1::DATA_TYPE_UNSPECIFIED); }),
                "wrong_dtype", "features have data type 0");
  ExpectInvalid(Step([](auto& r) {
                  std::vector<float> values(12, 1.0f);
                  values[2 * kDim + 1] = std::nanf("");
                  EncodeTensor(values, kDim, r.mutable_features());
                }),
                "not_finite", "features row 2 column 1 is nan");
}

TEST_F(ValidationTest, LabelsAreRefusedByCountAndValue) {
  ExpectInvalid(Step([](auto& r) { r.add_labels(0); }), "wrong_shape",
                "3 rows of features come with 4 labels");
  ExpectInvalid(Step([](auto& r) { r.set_labels(2, kClasses); }), "label_out_of_range",
                "label 103 of row 2 is outside [0, 103)");
  ExpectInvalid(Step([](auto& r) { r.set_labels(0, -2); }), "label_out_of_range",
                "label -2 of row 0 is outside [0, 103)");
}

TEST_F(ValidationTest, MoreRowsThanMaxBatchExhaustAResource) {
  const auto with_rows = [](int rows) {
    return [rows](v1::StepRequest& request) {
      *request.mutable_features() = Ones(rows);
      request.clear_labels();
      for (int row = 0; row < rows; ++row) request.add_labels(row);
    };
  };
  EXPECT_TRUE(Step(with_rows(8)).ok());
  ExpectRefusal(Step(with_rows(9)), absl::StatusCode::kResourceExhausted, "batch_too_large",
                "features have 9 rows; the model's max_batch is 8");
}

TEST_F(ValidationTest, NumbersOfAStepMustBeFiniteAndInRange) {
  for (const float bad : {-0.1f, std::nanf(""), kInfinity}) {
    ExpectInvalid(Step([bad](auto& r) { r.mutable_params()->set_learning_rate(bad); }), "bad_learning_rate",
                  "learning_rate");
  }
  for (const float bad : {0.0f, -1.0f, std::nanf(""), kInfinity}) {
    ExpectInvalid(Step([bad](auto& r) { r.mutable_params()->set_scale(bad); }), "bad_scale", "scale");
  }
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    ExpectInvalid(Step([bad](auto& r) { r.set_gradient_scale(bad); }), "bad_gradient_scale",
                  "gradient_scale");
  }
  EXPECT_TRUE(Step([](auto& r) { r.mutable_params()->set_learning_rate(0); }).ok());
  EXPECT_TRUE(Step([](auto& r) { r.set_gradient_scale(-2); }).ok());
}

TEST_F(ValidationTest, MarginsMustBeFiniteWithAPositiveMultiplier) {
  const auto with_margin = [](float m1, float m2, float m3) {
    return [=](v1::StepRequest& request) {
      v1::Margin* margin = request.mutable_params()->mutable_margin();
      margin->set_m1(m1);
      margin->set_m2(m2);
      margin->set_m3(m3);
    };
  };
  ExpectInvalid(Step(with_margin(0, 0, 0.4f)), "bad_margin", "margin (0, 0, 0.4) has m1 <= 0");
  ExpectInvalid(Step(with_margin(1, std::nanf(""), 0)), "bad_margin", "is not finite");
  ExpectInvalid(Step(with_margin(1, 0, kInfinity)), "bad_margin", "is not finite");
  EXPECT_TRUE(Step(with_margin(1.2f, 0.3f, 0.1f)).ok());
}

TEST_F(ValidationTest, AngularMarginsNeedNormalisedFeatures) {
  RequestRules rules = Rules();
  rules.spec.normalise_features = false;
  const RequestValidator validator(rules);
  v1::StepRequest request = ValidStep();
  request.mutable_params()->mutable_margin()->set_m1(1);
  request.mutable_params()->mutable_margin()->set_m3(0.4f);
  EXPECT_TRUE(validator.Step(request).ok());
  request.mutable_params()->mutable_margin()->set_m2(0.5f);
  ExpectInvalid(validator.Step(request).status(), "bad_margin", "needs normalise_features");
}

TEST_F(ValidationTest, ACheckpointNeedsADirectory) {
  RequestRules rules = Rules();
  rules.has_checkpoint_dir = false;
  v1::StepRequest request = ValidStep();
  request.mutable_params()->set_checkpoint(true);
  ExpectRefusal(RequestValidator(rules).Step(request).status(), absl::StatusCode::kFailedPrecondition,
                "no_checkpoint_dir", "--checkpoint_dir");
}

TEST_F(ValidationTest, RunsNeedANameARankAndANonce) {
  v1::OpenRunRequest valid;
  valid.set_run_id("run");
  valid.set_trainer_rank(1);
  valid.set_num_trainers(2);
  valid.set_start_nonce(9);
  EXPECT_EQ(validator_.OpenRun(valid), absl::OkStatus());

  v1::OpenRunRequest request = valid;
  request.set_run_id("");
  ExpectInvalid(validator_.OpenRun(request), "bad_name", "run_id has 0 bytes");
  request.set_run_id(std::string(257, 'x'));
  ExpectInvalid(validator_.OpenRun(request), "bad_name", "run_id has 257 bytes");
  request = valid;
  request.set_trainer_rank(2);
  ExpectInvalid(validator_.OpenRun(request), "bad_trainer", "trainer_rank 2 is outside [0, 2)");
  request.set_trainer_rank(-1);
  ExpectInvalid(validator_.OpenRun(request), "bad_trainer", "trainer_rank -1 is outside [0, 2)");
  request = valid;
  request.set_num_trainers(0);
  ExpectInvalid(validator_.OpenRun(request), "bad_trainer", "num_trainers 0");
  request.set_num_trainers(1 << 30);
  ExpectInvalid(validator_.OpenRun(request), "bad_trainer", "num_trainers 1073741824");
  request = valid;
  request.set_start_nonce(0);
  ExpectInvalid(validator_.OpenRun(request), "bad_trainer", "start_nonce is 0");

  ExpectInvalid(validator_.CloseRun(v1::CloseRunRequest()), "bad_name", "run_id has 0 bytes");
}

TEST_F(ValidationTest, EvaluationsAreCheckedLikeSteps) {
  v1::EvaluateRequest request;
  *request.mutable_features() = Ones(2);
  request.add_labels(1);
  ExpectInvalid(validator_.Evaluate(request).status(), "wrong_shape",
                "2 rows of features come with 1 labels");
  request.add_labels(-1);
  EXPECT_FALSE(validator_.Evaluate(request)->sample_rate.has_value());
  request.set_sample_rate(0);
  EXPECT_EQ(validator_.Evaluate(request)->sample_rate, 0.0);
  for (const double bad : {-0.1, std::nan(""), double{kInfinity}}) {
    request.set_sample_rate(bad);
    ExpectInvalid(validator_.Evaluate(request).status(), "bad_sample_rate", "sample_rate");
  }
}

TEST_F(ValidationTest, NearestNeedsASensibleK) {
  v1::NearestRequest request;
  *request.mutable_queries() = Ones(2);
  for (const int bad : {0, -1, 1025}) {
    request.set_k(bad);
    ExpectInvalid(validator_.Nearest(request).status(), "bad_k", "is outside [1, 1024]");
  }
  request.set_k(5);
  EXPECT_EQ(validator_.Nearest(request)->size(), 2u * kDim);
  *request.mutable_queries() = Ones(2, 3);
  ExpectInvalid(validator_.Nearest(request).status(), "wrong_dim", "queries have 3 columns");
}

TEST_F(ValidationTest, RowsOfOtherShardsAreRefusedWithTheirOwner) {
  v1::ReadCentresRequest request;
  request.add_class_ids(52);
  request.add_class_ids(102);
  EXPECT_THAT(*validator_.ReadCentres(request), ElementsAre(52, 102));
  request.set_class_ids(1, 51);
  ExpectInvalid(validator_.ReadCentres(request).status(), "class_not_owned",
                "class 51 is on shard 0; this is shard 1, with [52, 103)");
  request.set_class_ids(1, kClasses);
  ExpectInvalid(validator_.ReadCentres(request).status(), "class_out_of_range",
                "class 103 is outside [0, 103)");
  request.set_class_ids(1, -1);
  ExpectInvalid(validator_.ReadCentres(request).status(), "class_out_of_range",
                "class -1 is outside [0, 103)");
}

TEST_F(ValidationTest, ReadingMoreThanAMessageHoldsIsRefused) {
  v1::ReadCentresRequest request;
  for (int i = 0; i < 20; ++i) request.add_class_ids(60);
  EXPECT_TRUE(validator_.ReadCentres(request).ok());
  request.set_with_momentum(true);
  ExpectRefusal(validator_.ReadCentres(request).status(), absl::StatusCode::kResourceExhausted,
                "reply_too_large", "20 rows are 640 bytes; a message may have 320: ask for at most 10 rows");
}

v1::WriteCentresRequest ValidWrite() {
  v1::WriteCentresRequest request;
  request.set_write_id("w");
  request.add_class_ids(60);
  request.add_class_ids(52);
  *request.mutable_centres() = Ones(2);
  return request;
}

TEST_F(ValidationTest, AWriteBecomesItsRows) {
  const absl::StatusOr<RequestValidator::Centres> centres = validator_.WriteCentres(ValidWrite());
  ASSERT_TRUE(centres.ok()) << centres.status();
  EXPECT_THAT(centres->class_ids, ElementsAre(60, 52));
  EXPECT_EQ(centres->values, std::vector<float>(2 * kDim, 1.0f));
}

TEST_F(ValidationTest, CentresWithoutADirectionAreRefused) {
  v1::WriteCentresRequest request = ValidWrite();
  std::vector<float> values(2 * kDim, 1.0f);
  std::fill(values.begin() + kDim, values.end(), 0.0f);
  EncodeTensor(values, kDim, request.mutable_centres());
  ExpectInvalid(validator_.WriteCentres(request).status(), "zero_centre", "centres row 1 (class 52)");
  values[kDim] = kInfinity;
  EncodeTensor(values, kDim, request.mutable_centres());
  ExpectInvalid(validator_.WriteCentres(request).status(), "not_finite", "centres row 1 column 0 is inf");
}

TEST_F(ValidationTest, WritesAreRefusedByNameRowsAndShape) {
  v1::WriteCentresRequest request = ValidWrite();
  request.set_write_id("");
  ExpectInvalid(validator_.WriteCentres(request).status(), "bad_name", "write_id has 0 bytes");
  request = ValidWrite();
  request.set_commit_rows(-1);
  ExpectInvalid(validator_.WriteCentres(request).status(), "bad_commit_rows", "commit_rows -1");
  request = ValidWrite();
  request.set_class_ids(0, 3);
  ExpectInvalid(validator_.WriteCentres(request).status(), "class_not_owned", "class 3 is on shard 0");
  request = ValidWrite();
  request.set_class_ids(1, 60);
  ExpectInvalid(validator_.WriteCentres(request).status(), "repeated_class",
                "class 60 is in row 0 and again in row 1");
  request = ValidWrite();
  request.add_class_ids(70);
  ExpectInvalid(validator_.WriteCentres(request).status(), "wrong_shape", "3 class_ids come with 2 centres");
}

TEST_F(ValidationTest, ACommitAloneBringsNoRows) {
  v1::WriteCentresRequest request;
  request.set_write_id("w");
  request.set_commit_rows(7);
  EXPECT_TRUE(validator_.WriteCentres(request)->class_ids.empty());
}

}  // namespace
}  // namespace ccs
