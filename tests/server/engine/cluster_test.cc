// A cluster of real parts in one process: what it computes, and what it answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/engine/layout.h"
#include "tests/server/engine/cluster_cases.h"
#include "tests/testing/step_reference.h"

namespace ccs::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 1e-6;
const ReferenceHead kReferenceHead = {.scale = 16, .m3 = 0.25};

std::vector<double> Widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Rows of all trainers, one after the other.
TrainerBatch Together(const std::vector<TrainerBatch>& batches) {
  TrainerBatch all;
  for (const TrainerBatch& batch : batches) {
    all.features.insert(all.features.end(), batch.features.begin(), batch.features.end());
    all.labels.insert(all.labels.end(), batch.labels.begin(), batch.labels.end());
  }
  return all;
}

// About two thirds of a shard's rows and every positive.
std::vector<int64_t> SampledRows(const ClassRange& range, const std::vector<int64_t>& labels, int64_t step) {
  std::set<int64_t> rows;
  for (int64_t row = 0; row < range.count; ++row) {
    if ((row + step) % 3 != 0) rows.insert(row);
  }
  for (const int64_t label : labels) {
    if (range.contains(label)) rows.insert(label - range.start);
  }
  return {rows.begin(), rows.end()};
}

// The state of a cluster as the reference sees it.
std::vector<ReferenceShard> ReferenceOf(const CentreRows& rows, int64_t num_classes, int num_shards) {
  std::vector<ReferenceShard> shards = EmptyReferenceShards(num_classes, num_shards, kCaseDim);
  for (ReferenceShard& shard : shards) {
    const auto first = rows.centres.begin() + shard.class_start * kCaseDim;
    shard.weight.assign(first, first + shard.num_local * kCaseDim);
  }
  return shards;
}

std::vector<double> Rows(const std::vector<ReferenceShard>& shards,
                         std::vector<double> ReferenceShard::*which) {
  std::vector<double> all;
  for (const ReferenceShard& shard : shards)
    all.insert(all.end(), (shard.*which).begin(), (shard.*which).end());
  return all;
}

struct Shape {
  int shards;
  int trainers;
  int64_t classes;
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    return out << shape.shards << " shards, " << shape.trainers << " trainers, " << shape.classes
               << " classes";
  }
};

class ClusterOfShape : public ::testing::TestWithParam<Shape> {};

TEST_P(ClusterOfShape, TrainsAsTheReferenceDoes) {
  const auto [num_shards, num_trainers, classes] = GetParam();
  InProcessClusterOptions options;
  options.num_shards = num_shards;
  options.spec = CaseSpec(1, classes);
  const auto sampled = [num_shards = num_shards, num_trainers = num_trainers, classes = classes](
                           int rank, int64_t step) {
    const TrainerBatch all = Together(CaseBatches(step, num_trainers, classes));
    return SampledRows(ClassRangeOf(classes, num_shards, rank), all.labels, step);
  };
  options.sampled_rows = sampled;
  InProcessCluster cluster(options);
  ASSERT_TRUE(cluster.WaitServing().ok());
  InProcessTrainers trainers(&cluster, num_trainers, kCaseDim);
  ASSERT_TRUE(trainers.Open().ok());
  std::vector<ReferenceShard> reference = ReferenceOf(cluster.ReadAllCentres().value(), classes, num_shards);

  for (int64_t step = 1; step <= 4; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    const std::vector<TrainerBatch> batches = CaseBatches(step, num_trainers, classes);
    const TrainerBatch all = Together(batches);
    std::vector<std::vector<int64_t>> rows;
    for (int rank = 0; rank < num_shards; ++rank) rows.push_back(sampled(rank, step));
    const ReferenceResult want = ReferenceStep(&reference, rows, Widened(all.features), all.labels, kCaseDim,
                                               kReferenceHead, {.learning_rate = 0.25}, true);
    std::vector<float> gradient;
    for (const auto& reply : trainers.Step(batches, CaseParams())) {
      ASSERT_TRUE(reply.ok()) << reply.status();
      EXPECT_NEAR(reply->loss, want.loss, kTolerance * want.loss);
      gradient.insert(gradient.end(), reply->feature_grad.begin(), reply->feature_grad.end());
    }
    EXPECT_LE(RelativeError(gradient, want.gradient), kTolerance);
    const CentreRows got = cluster.ReadAllCentres().value();
    EXPECT_LE(RelativeError(got.centres, Rows(reference, &ReferenceShard::weight)), kTolerance);
    EXPECT_LE(RelativeError(got.momentum, Rows(reference, &ReferenceShard::momentum)), kTolerance);
  }
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{5, 2, 3}, {2, 1, 1}};  // shards without classes
  for (const int shards : {1, 2, 3, 5}) {
    for (const int trainers : {1, 2, 3, 4}) shapes.push_back({shards, trainers, kCaseClasses});
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Grid, ClusterOfShape, ::testing::ValuesIn(Shapes()),
                         [](const ::testing::TestParamInfo<Shape>& info) {
                           return absl::StrCat(info.param.shards, "shards", info.param.trainers, "trainers",
                                               info.param.classes, "classes");
                         });

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() {
    options_.num_shards = 3;
    options_.spec = CaseSpec(0.5);
  }
  // Three shards serve two trainers.
  void Begin() {
    cluster_ = std::make_unique<InProcessCluster>(options_);
    ASSERT_TRUE(cluster_->WaitServing().ok());
    trainers_ = std::make_unique<InProcessTrainers>(cluster_.get(), 2, kCaseDim);
    ASSERT_TRUE(trainers_->Open().ok());
  }

  InProcessClusterOptions options_;
  std::unique_ptr<InProcessCluster> cluster_;
  std::unique_ptr<InProcessTrainers> trainers_;
};

TEST_F(ClusterTest, TheSameRequestsGiveTheSameBits) {
  Begin();
  const std::vector<double> first = Train(trainers_.get(), 2, 5);
  const CentreRows first_rows = cluster_->ReadAllCentres().value();
  Begin();
  EXPECT_EQ(Train(trainers_.get(), 2, 5), first);
  const CentreRows rows = cluster_->ReadAllCentres().value();
  EXPECT_EQ(rows.centres, first_rows.centres);
  EXPECT_EQ(rows.momentum, first_rows.momentum);
  EXPECT_EQ(rows.position.step, 5);
}

TEST_F(ClusterTest, AllTrainersHearTheSameLoss) {
  Begin();
  for (int64_t step = 1; step <= 3; ++step) {
    const auto replies = trainers_->Step(CaseBatches(step, 2), CaseParams());
    ASSERT_TRUE(replies[0].ok() && replies[1].ok());
    EXPECT_EQ(replies[0]->loss, replies[1]->loss);
  }
}

TEST_F(ClusterTest, AStepWithoutLabelsLosesNothingAndStillDecays) {
  options_.spec = CaseSpec(1);
  Begin();
  TrainerBatch unlabelled = CaseBatch(1, 3);
  unlabelled.labels.assign(3, -1);
  const CentreRows before = cluster_->ReadAllCentres().value();
  for (const auto& reply : trainers_->Step({unlabelled, {}}, CaseParams())) {
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->loss, 0);
    EXPECT_THAT(reply->feature_grad, ::testing::Each(0));
  }
  EXPECT_NE(cluster_->ReadAllCentres()->centres, before.centres);
}

TEST_F(ClusterTest, ARepeatedRequestGetsTheSameBitsAndIsAppliedOnce) {
  Begin();
  const std::vector<TrainerBatch> batches = CaseBatches(1, 2);
  const auto first_sent = trainers_->Send(0, batches[0], CaseParams());
  const auto repeated_early = trainers_->Send(0, batches[0], CaseParams());
  const auto other_sent = trainers_->Send(1, batches[1], CaseParams());
  const TrainerReply first = InProcessTrainers::Receive(first_sent).value();
  const TrainerReply early = InProcessTrainers::Receive(repeated_early).value();
  ASSERT_TRUE(InProcessTrainers::Receive(other_sent).ok());
  const CentreRows after = cluster_->ReadAllCentres().value();
  const TrainerReply late = InProcessTrainers::Receive(trainers_->Send(0, batches[0], CaseParams())).value();
  for (const TrainerReply& repeated : {early, late}) {
    EXPECT_EQ(repeated.loss, first.loss);
    EXPECT_EQ(repeated.feature_grad, first.feature_grad);
  }
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, after.centres);

  TrainerBatch other = batches[0];
  other.features[0] += 1;
  const auto refused = InProcessTrainers::Receive(trainers_->Send(0, other, CaseParams()));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused.status()), "payload_differs");
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, after.centres);
}

TEST_F(ClusterTest, BeforeGoACorrectedSliceTakesThePlaceOfTheFirst) {
  Begin();
  const std::vector<TrainerBatch> batches = CaseBatches(1, 2);
  TrainerBatch wrong = batches[0];
  wrong.features[0] += 1;
  const auto wrong_sent = trainers_->Send(0, wrong, CaseParams());
  const auto replies = trainers_->Step(batches, CaseParams());
  ASSERT_TRUE(replies[0].ok() && replies[1].ok());
  EXPECT_EQ(InProcessTrainers::Receive(wrong_sent).status().code(), absl::StatusCode::kFailedPrecondition);
  Begin();
  EXPECT_EQ(trainers_->Step(batches, CaseParams())[0]->feature_grad, replies[0]->feature_grad);
}

TEST_F(ClusterTest, MarginAndScaleOfAStepOverrideTheSpec) {
  options_.spec = CaseSpec(1);
  Begin();
  const std::vector<TrainerBatch> batches = CaseBatches(1, 2);
  const TrainerBatch all = Together(batches);
  std::vector<std::vector<int64_t>> every_row;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<int64_t>& rows = every_row.emplace_back(ClassRangeOf(kCaseClasses, 3, rank).count);
    std::iota(rows.begin(), rows.end(), 0);
  }
  std::vector<ReferenceShard> reference = ReferenceOf(cluster_->ReadAllCentres().value(), kCaseClasses, 3);
  const ReferenceResult want =
      ReferenceStep(&reference, every_row, Widened(all.features), all.labels, kCaseDim,
                    {.scale = 8, .m1 = 1, .m2 = 0.5, .m3 = 0.125}, {}, true);
  StepParams params = CaseParams();
  params.scale = 8.0f;
  params.margin = kernels::Margin{1, 0.5f, 0.125f};
  const auto replies = trainers_->Step(batches, params);
  ASSERT_TRUE(replies[0].ok()) << replies[0].status();
  EXPECT_NEAR(replies[0]->loss, want.loss, kTolerance * want.loss);
}

TEST_F(ClusterTest, EvaluationIsExactFromAnyShardAndChangesNothing) {
  Begin();
  Train(trainers_.get(), 2, 3);
  const CentreRows before = cluster_->ReadAllCentres().value();
  std::vector<ReferenceShard> reference = ReferenceOf(before, kCaseClasses, 1);
  std::vector<int64_t> every_row(kCaseClasses);
  std::iota(every_row.begin(), every_row.end(), 0);
  const TrainerBatch batch = CaseBatch(77, 20);
  const double want = ReferenceStep(&reference, {every_row}, Widened(batch.features), batch.labels, kCaseDim,
                                    kReferenceHead, {}, true)
                          .loss;
  for (int rank = 0; rank < 3; ++rank) {
    const auto got = cluster_->Evaluate(rank, batch.features, batch.labels, std::nullopt);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->labelled_rows, 16);
    EXPECT_NEAR(got->evaluation.loss_sum / 16, want, kTolerance * want);
    EXPECT_EQ(got->position.step, 3);
  }
  EXPECT_TRUE(cluster_->Evaluate(1, batch.features, batch.labels, 0.5).ok());
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, before.centres);
  EXPECT_EQ(cluster_->ReadAllCentres()->momentum, before.momentum);
}

TEST_F(ClusterTest, NearestFindsACentreByItself) {
  Begin();
  const std::vector<int64_t> ids = {22, 0, 9};
  const CentreRows rows = cluster_->ReadCentres(ids).value();
  const auto got = cluster_->Nearest(2, rows.centres, 4);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->neighbours.size(), 12u);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(got->neighbours[4 * i].class_id, ids[i]);
    EXPECT_NEAR(got->neighbours[4 * i].cosine, 1, 1e-6);
    EXPECT_GE(got->neighbours[4 * i + 1].cosine, got->neighbours[4 * i + 2].cosine);
  }
}

TEST_F(ClusterTest, QueriesGoBetweenStepsOfTrainersThatDoNotWait) {
  Begin();
  const TrainerBatch batch = CaseBatch(77, 5);
  std::thread asker([&] {
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(cluster_->Evaluate(i % 3, batch.features, batch.labels, std::nullopt).ok());
      EXPECT_TRUE(cluster_->ReadCentres({i}).ok());
    }
  });
  Train(trainers_.get(), 2, 10);
  asker.join();
  EXPECT_EQ(cluster_->position(0).step, 10);
}

TEST_F(ClusterTest, WrittenCentresAreCommittedExactlyOnce) {
  Begin();
  const std::vector<int64_t> ids = {3, 8, 20};
  std::vector<float> centres(3 * kCaseDim);
  for (size_t i = 0; i < centres.size(); ++i) centres[i] = static_cast<float>(i + 1);
  ASSERT_TRUE(cluster_->StageCentres("w", ids, centres).ok());
  const auto incomplete = cluster_->CommitCentres(1, "w", 4);
  EXPECT_EQ(incomplete.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(incomplete.status().message()), ::testing::AllOf(HasSubstr("3"), HasSubstr("4")));
  EXPECT_NE(cluster_->ReadCentres(ids)->centres, centres);

  const auto committed = cluster_->CommitCentres(1, "w", 3);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->committed_rows(), 3);
  EXPECT_EQ(cluster_->ReadCentres(ids)->centres, centres);
  EXPECT_THAT(cluster_->ReadCentres(ids)->momentum, ::testing::Each(0));

  Train(trainers_.get(), 2, 2);
  const CentreRows trained = cluster_->ReadAllCentres().value();
  ASSERT_TRUE(cluster_->StageCentres("w", ids, centres).ok());
  EXPECT_TRUE(cluster_->CommitCentres(0, "w", 3).ok()) << "a retry of what is done";
  EXPECT_EQ(cluster_->ReadAllCentres()->centres, trained.centres);
}

TEST_F(ClusterTest, ARestartedTrainerFencesOffItsFormerSelf) {
  Begin();
  const std::vector<TrainerBatch> batches = CaseBatches(1, 2);
  const auto former_slices = trainers_->Slices(0, batches[0], CaseParams());
  ASSERT_TRUE(trainers_->Open(0).ok());
  for (const auto& [home, slice] : former_slices) {
    const auto refused = cluster_->Submit(home, slice).Get();
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(refused.status()), "stale_incarnation");
  }
  EXPECT_TRUE(trainers_->Step(batches, CaseParams())[0].ok());
}

TEST_F(ClusterTest, AnotherRunOrNumberOfTrainersIsRefusedWithBothNamed) {
  Begin();
  const auto other_run = cluster_->OpenRun(1, "other", 0, 2, 9);
  EXPECT_EQ(other_run.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other_run.status().message()), HasSubstr("run"));
  const auto other_number = cluster_->OpenRun(1, "run", 0, 3, 9);
  EXPECT_EQ(other_number.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other_number.status().message()), ::testing::AllOf(HasSubstr("2"), HasSubstr("3")));
}

TEST_F(ClusterTest, AClosedRunMakesRoomForAnother) {
  Begin();
  Train(trainers_.get(), 2, 1);
  v1::Propose close;
  close.mutable_close_run()->set_run_id("run");
  ASSERT_TRUE(cluster_->Propose(2, close).ok());
  InProcessTrainers next(cluster_.get(), 1, kCaseDim, "next");
  ASSERT_TRUE(next.Open().ok());
  EXPECT_EQ(next.position().step, 1);
  EXPECT_TRUE(next.Step({CaseBatch(1, 4)}, CaseParams())[0].ok());
  EXPECT_FALSE(trainers_->Step(CaseBatches(2, 2), CaseParams())[0].ok());
}

}  // namespace
}  // namespace ccs::testing
