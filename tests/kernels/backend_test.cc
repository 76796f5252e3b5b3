// Rows and refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/backend_cluster.h"
#include "tests/kernels/backend_under_test.h"
#include "tests/kernels/refusals.h"

namespace ccs::kernels {
namespace {

TEST(BackendTest, InitialCentresDoNotDependOnTheNumberOfShards) {
  BackendCluster one({.num_classes = 1001, .num_shards = 1, .dim = 10, .seed = 7});
  BackendCluster five({.num_classes = 1001, .num_shards = 5, .dim = 10, .threads = 3, .seed = 7});
  std::vector<float> joined;
  for (int rank = 0; rank < 5; ++rank) {
    const auto weight = five.Weight(rank);
    joined.insert(joined.end(), weight.begin(), weight.end());
  }
  EXPECT_EQ(joined, one.Weight(0));
  EXPECT_NE(one.Weight(0), BackendCluster({.num_classes = 1001, .dim = 10, .seed = 8}).Weight(0));
}

TEST(BackendTest, WrittenRowsAreReadBackAndNoOthersChange) {
  auto backend = MakeBackend(SmallConfig()).value();
  ASSERT_TRUE(backend->InitialiseRows().ok());
  std::vector<float> before(20 * 6), after(20 * 6), momentum(20 * 6);
  ASSERT_TRUE(backend->ReadRows(0, 20, before.data(), nullptr).ok());
  const std::vector<float> rows(2 * 6, 3.0f), rows_momentum(2 * 6, 4.0f);
  ASSERT_TRUE(backend->WriteRows(5, 2, rows.data(), rows_momentum.data()).ok());
  ASSERT_TRUE(backend->ReadRows(0, 20, after.data(), momentum.data()).ok());
  for (int i = 0; i < 20 * 6; ++i) {
    const bool written = i / 6 == 5 || i / 6 == 6;
    EXPECT_EQ(after[i], written ? 3.0f : before[i]);
    EXPECT_EQ(momentum[i], written ? 4.0f : 0.0f);
  }
  ASSERT_TRUE(backend->WriteRows(5, 1, rows.data(), nullptr).ok());
  ASSERT_TRUE(backend->ReadRows(5, 2, nullptr, momentum.data()).ok());
  EXPECT_EQ(momentum[0], 0.0f);
  EXPECT_EQ(momentum[6], 4.0f);
}

TEST(BackendTest, RefusesRowsOutOfRange) {
  auto backend = MakeBackend(SmallConfig()).value();
  std::vector<float> rows(3 * 6);
  ExpectInvalid(backend->ReadRows(18, 3, rows.data(), nullptr), "[18, +3)");
  ExpectInvalid(backend->WriteRows(-1, 2, rows.data(), nullptr), "[-1, +2)");
  EXPECT_TRUE(backend->ReadRows(20, 0, rows.data(), nullptr).ok());
}

class RefusalTest : public ::testing::Test {
 protected:
  RefusalTest() {
    EXPECT_TRUE(backend_->InitialiseRows().ok());
    std::fill_n(backend_->features(), 4 * 6, 1.0f);
    before_ = State();
  }
  ~RefusalTest() override { EXPECT_EQ(State(), before_); }

  std::vector<float> State() const {
    std::vector<float> state(2 * 20 * 6);
    EXPECT_TRUE(backend_->ReadRows(0, 20, state.data(), state.data() + 20 * 6).ok());
    return state;
  }

  std::unique_ptr<ShardBackend> backend_ = MakeBackend(SmallConfig()).value();
  std::vector<float> before_;
};

TEST_F(RefusalTest, BatchBeyondTheMaximum) {
  ExpectInvalid(backend_->SetBatch({1, 2, 3, 4, 5}), "a batch of 5 rows; at most 4");
}

TEST_F(RefusalTest, LabelBelowMinusOne) { ExpectInvalid(backend_->SetBatch({1, -2}), "label -2 of row 1"); }

TEST_F(RefusalTest, FeaturesThatAreNotFinite) {
  backend_->features()[7] = std::numeric_limits<float>::quiet_NaN();
  ExpectInvalid(backend_->SetBatch({1, 2}), "features of row 1");
  backend_->features()[7] = std::numeric_limits<float>::infinity();
  ExpectInvalid(backend_->SetBatch({1, 2}), "features of row 1");
}

TEST_F(RefusalTest, SampleWithoutAPositive) {
  ASSERT_TRUE(backend_->SetBatch({-1, 105}).ok());
  ExpectInvalid(backend_->Pass1({}, {4, 6}), "class 105 of row 1 is not among the sampled rows");
  std::vector<EvaluationPartial> partials;
  ASSERT_TRUE(backend_->SetBatch({-1, 105}).ok());
  ExpectInvalid(backend_->Evaluate({}, {4, 6}, &partials), "class 105 of row 1");
}

TEST_F(RefusalTest, SampleOutOfOrderOrRange) {
  ASSERT_TRUE(backend_->SetBatch({-1}).ok());
  ExpectInvalid(backend_->Pass1({}, {4, 4}), "row 4 after 4");
  ExpectInvalid(backend_->Pass1({}, {4, 3}), "row 3 after 4");
  ExpectInvalid(backend_->Pass1({}, {-1}), "row -1");
  ExpectInvalid(backend_->Pass1({}, {20}), "row 20");
}

TEST_F(RefusalTest, HeadWithoutAScale) {
  ASSERT_TRUE(backend_->SetBatch({-1}).ok());
  ExpectInvalid(backend_->Pass1({.scale = 0, .margin = {}}, {}), "positive scale");
  ExpectInvalid(backend_->Pass1({.margin = {.m3 = NAN}}, {}), "finite margins");
}

TEST_F(RefusalTest, AngularMarginOnFeaturesAsGiven) {
  ShardConfig config = SmallConfig();
  config.normalise_features = false;
  const auto backend = MakeBackend(config).value();
  std::fill_n(backend->features(), 6, 1.0f);
  ASSERT_TRUE(backend->SetBatch({-1}).ok());
  ExpectInvalid(backend->Pass1({.margin = {.m2 = 0.5f}}, {}), "needs normalised features");
  EXPECT_TRUE(backend->Pass1({.margin = {.m3 = 0.5f}}, {}).ok());
}

TEST_F(RefusalTest, CallsInTheWrongOrder) {
  EXPECT_FALSE(backend_->Pass1({}, {}).ok());
  ASSERT_TRUE(backend_->SetBatch({-1}).ok());
  EXPECT_FALSE(backend_->Combine().ok());
  EXPECT_FALSE(backend_->Pass2({}).ok());
  ASSERT_TRUE(backend_->Pass1({}, {1}).ok());
  EXPECT_FALSE(backend_->Pass2({}).ok());
  ASSERT_TRUE(backend_->Combine().ok());
  EXPECT_FALSE(backend_->Combine().ok());
  EXPECT_FALSE(backend_->FinishFeatureGradient(0, 2, backend_->gradient_sum()).ok());
}

TEST_F(RefusalTest, NoNeighbours) {
  ASSERT_TRUE(backend_->SetBatch({-1}).ok());
  std::vector<Neighbour> neighbours;
  ExpectInvalid(backend_->Nearest(0, &neighbours), "at least 1");
}

}  // namespace
}  // namespace ccs::kernels
