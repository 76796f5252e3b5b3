// The real binaries, seen as a user sees them: train, scrape, ask ccsctl, stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/distributed/ctl.h"
#include "tests/distributed/trainers.h"
#include "tests/testing/http.h"
#include "tests/testing/process_cluster.h"

namespace ccs::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kClasses = 30;
constexpr int kDim = 12;

class EndToEndTest : public ::testing::Test {
 protected:
  EndToEndTest()
      : cluster_({.server_binary = CCS_SERVER_BINARY,
                  .num_shards = 3,
                  .model = absl::StrCat("num_classes: ", kClasses, " dim: ", kDim,
                                        " head { cosface { margin: 0.1 } scale: 8 } seed: 5"),
                  .flags = {absl::StrCat("--checkpoint_dir=", (directory_.path() / "checkpoints").string())},
                  .threads = 1},
                 directory_.path()) {}

  int Ctl(const std::vector<std::string>& arguments, std::string* output) {
    return testing::Ctl(cluster_.address(1), directory_.path(), arguments, output);
  }

  TempDir directory_;
  ProcessCluster cluster_;
};

TEST_F(EndToEndTest, TrainsReportsAndStopsCleanly) {
  ASSERT_TRUE(cluster_.StartAll().ok());
  auto trainers = Trainers::Open(cluster_, 2);
  ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster_.log(0);
  // The same rows again and again are learned.
  std::vector<Rows> rows = {RandomRows(kClasses, kDim, 9, 1, 0), RandomRows(kClasses, kDim, 7, 1, 1)};
  double first_loss = 0;
  double loss = 0;
  constexpr int kSteps = 40;
  for (int step = 1; step <= kSteps; ++step) {
    const auto results = trainers->Step(rows, 0.2f);
    for (const auto& result : results) ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(results[0]->loss, results[1]->loss);
    loss = results[0]->loss;
    if (step == 1) first_loss = loss;
  }
  EXPECT_LT(loss, first_loss / 2);

  for (int rank = 0; rank < 3; ++rank) {
    // The trainers have their replies before the last step is over.
    std::string metrics;
    for (const absl::Time end = absl::Now() + absl::Seconds(10); absl::Now() < end;) {
      metrics = HttpGet(cluster_.metrics_port(rank), "/metrics");
      if (MetricValue(metrics, "ccs_steps_total") == kSteps) break;
      absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_THAT(metrics, HasSubstr("200 OK"));
    EXPECT_NEAR(MetricValue(metrics, "ccs_loss"), loss, 1e-6 * loss) << metrics;
    EXPECT_EQ(MetricValue(metrics, "ccs_steps_total"), kSteps);
  }

  std::string output;
  ASSERT_EQ(Ctl({"status", "--format=json"}, &output), 0) << output;
  const nlohmann::json status = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(status.is_discarded()) << output;
  EXPECT_EQ(status["position"]["step"], kSteps) << output;
  EXPECT_EQ(status["shards"].size(), 3) << output;
  ASSERT_EQ(Ctl({"status"}, &output), 0) << output;
  EXPECT_THAT(output, HasSubstr(cluster_.address(2)));
  ASSERT_EQ(Ctl({"checkpoint"}, &output), 0) << output;
  ASSERT_EQ(Ctl({"list"}, &output), 0);
  EXPECT_THAT(output, HasSubstr(absl::StrCat("A run can resume from: step ", kSteps)));
  ASSERT_EQ(Ctl({"centres", "--ids=0,10-12,29"}, &output), 0) << output;
  ASSERT_EQ(Ctl({"nearest", "--class=3", "--k=2"}, &output), 0) << output;

  const absl::Status stopped = cluster_.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
  EXPECT_EQ(Ctl({"--timeout=1", "status"}, &output), 2) << output;
}

TEST_F(EndToEndTest, EvaluateNearestAndWritesWorkAcrossShards) {
  ASSERT_TRUE(cluster_.StartAll().ok());
  auto client = cluster_.Connect();
  ASSERT_TRUE(client.ok()) << client.status() << cluster_.log(0);
  // Centres that are unit vectors or their negatives, 24 of them; the query is one of them.
  std::vector<float> centres(size_t{2} * kDim * kDim, 0.0f);
  std::vector<int64_t> ids;
  for (int i = 0; i < 2 * kDim; ++i) {
    centres[static_cast<size_t>(i) * kDim + i % kDim] = i < kDim ? 3.0f : -3.0f;
    ids.push_back(kClasses - 1 - i);
  }
  ASSERT_TRUE((*client)->WriteCentres(ids, centres).ok());
  EXPECT_EQ((*client)->ReadCentres(ids).value(), centres);

  std::vector<float> queries(2 * kDim, 0.0f);
  queries[0] = 5.0f;
  queries[kDim + 1] = 5.0f;
  const auto nearest = (*client)->Nearest(queries, 1);
  ASSERT_TRUE(nearest.ok()) << nearest.status();
  EXPECT_EQ((*nearest)[0][0].class_id, ids[0]);
  EXPECT_EQ((*nearest)[1][0].class_id, ids[1]);
  EXPECT_NEAR((*nearest)[0][0].cosine, 1.0, 1e-6);

  const auto evaluation = (*client)->Evaluate(queries, std::vector<int64_t>{ids[0], ids[2]});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(evaluation->labelled_rows, 2);
  EXPECT_EQ(evaluation->rank1_hits, 1);
}

}  // namespace
}  // namespace ccs::testing
