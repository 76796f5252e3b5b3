#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/http.h"

namespace ccs {
namespace {

using ::ccs::testing::HttpGet;
using ::ccs::testing::MetricValue;
using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ::testing::Test {
 protected:
  double Value(const std::string& series) const { return MetricValue(metrics_.Text(), series); }

  Metrics metrics_{{.version = "1.2.3 (abc)",
                    .device = "cpu, AVX2",
                    .rank = 1,
                    .num_shards = 3,
                    .num_classes = 20932,
                    .dim = 128,
                    .sample_rate = 0.1,
                    .head = "cosface"}};
};

TEST_F(MetricsTest, StepsAddUpAndTheLastOneShows) {
  StepObservation step;
  step.learning_rate = 0.5f;
  step.batch_rows = 8;
  step.labelled_rows = 7;
  step.own_rows = 4;
  step.sampled_classes = 100;
  step.positives = 3;
  for (step.step = 11; step.step <= 12; ++step.step) {
    step.loss = static_cast<double>(step.step) + 0.25;
    metrics_.StepFinished(step);
  }
  EXPECT_EQ(Value("ccs_loss"), 12.25);
  EXPECT_EQ(Value("ccs_learning_rate"), 0.5);
  EXPECT_EQ(Value("ccs_position_step"), 12);
  EXPECT_EQ(Value("ccs_steps_total"), 2);
  EXPECT_EQ(Value("ccs_batch_samples_total"), 16);
  EXPECT_EQ(Value("ccs_labelled_samples_total"), 14);
  EXPECT_EQ(Value("ccs_own_samples_total"), 8);
  EXPECT_EQ(Value("ccs_sampled_classes_total"), 200);
  EXPECT_EQ(Value("ccs_positive_classes_total"), 6);
}

TEST_F(MetricsTest, EveryPhaseHasItsOwnHistogramAndWaitingIsNoPartOfTheStep) {
  StepObservation step;
  step.phases = {.wait = absl::Seconds(64),
                 .gather = absl::Seconds(1),
                 .sample = absl::Seconds(2),
                 .pass1 = absl::Seconds(4),
                 .log = absl::Seconds(128),
                 .exchange = absl::Seconds(8),
                 .reply = absl::Seconds(16),
                 .staging = absl::Seconds(256),
                 .pass2 = absl::Seconds(32)};
  metrics_.StepFinished(step);
  const auto phase = [this](const char* name) {
    return Value(absl::StrCat("ccs_step_phase_duration_seconds_sum{phase=\"", name, "\"}"));
  };
  EXPECT_EQ(phase("wait"), 64);
  EXPECT_EQ(phase("gather"), 1);
  EXPECT_EQ(phase("sample"), 2);
  EXPECT_EQ(phase("pass1"), 4);
  EXPECT_EQ(phase("log"), 128);
  EXPECT_EQ(phase("exchange"), 8);
  EXPECT_EQ(phase("reply"), 16);
  EXPECT_EQ(phase("staging"), 256);
  EXPECT_EQ(phase("pass2"), 32);
  EXPECT_EQ(Value("ccs_step_duration_seconds_sum"), 447);
  EXPECT_EQ(Value("ccs_step_duration_seconds_count"), 1);
  EXPECT_EQ(Value("ccs_step_phase_duration_seconds_bucket{phase=\"gather\",le=\"1\"}"), 1);
  EXPECT_EQ(Value("ccs_step_phase_duration_seconds_bucket{phase=\"gather\",le=\"0.5\"}"), 0);
}

TEST_F(MetricsTest, RequestsCountByMethodAndCodeAndRejectionsByReason) {
  metrics_.RequestFinished("Step", "OK", absl::Milliseconds(250));
  metrics_.RequestFinished("Step", "INVALID_ARGUMENT", absl::Milliseconds(250));
  metrics_.RequestFinished("Nearest", "OK", absl::Seconds(1));
  metrics_.RequestRejected("label_out_of_range");
  EXPECT_EQ(Value("ccs_requests_total{code=\"OK\",method=\"Step\"}"), 1);
  EXPECT_EQ(Value("ccs_requests_total{code=\"INVALID_ARGUMENT\",method=\"Step\"}"), 1);
  EXPECT_EQ(Value("ccs_request_duration_seconds_count{method=\"Step\"}"), 2);
  EXPECT_EQ(Value("ccs_request_duration_seconds_sum{method=\"Step\"}"), 0.5);
  EXPECT_EQ(Value("ccs_request_duration_seconds_sum{method=\"Nearest\"}"), 1);
  EXPECT_EQ(Value("ccs_requests_rejected_total{reason=\"label_out_of_range\"}"), 1);
}

TEST_F(MetricsTest, CheckpointAgeIsAbsentUntilThereIsOneAndGrowsFromThen) {
  EXPECT_TRUE(std::isnan(Value("ccs_checkpoint_age_seconds")));
  EXPECT_TRUE(std::isnan(Value("ccs_checkpoint_timestamp_seconds")));
  const double before = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  metrics_.CheckpointWritten(absl::Seconds(2), 4096, 1024);
  EXPECT_EQ(Value("ccs_checkpoint_bytes"), 4096);
  EXPECT_EQ(Value("ccs_checkpoint_written_bytes_total"), 1024);
  metrics_.CheckpointFailed();
  const double after = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_GE(Value("ccs_checkpoint_timestamp_seconds"), before - 1e-3);
  EXPECT_LE(Value("ccs_checkpoint_timestamp_seconds"), after + 1e-3);
  EXPECT_EQ(Value("ccs_checkpoints_total"), 1);
  EXPECT_EQ(Value("ccs_checkpoint_failures_total"), 1);
  EXPECT_EQ(Value("ccs_checkpoint_duration_seconds_sum"), 2);
  EXPECT_EQ(Value("ccs_checkpoint_bytes"), 4096);

  const double age = Value("ccs_checkpoint_age_seconds");
  EXPECT_GE(age, 0);
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (Value("ccs_checkpoint_age_seconds") <= age && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GT(Value("ccs_checkpoint_age_seconds"), age);
}

TEST_F(MetricsTest, GroupMemoryBuildAndSpecShow) {
  metrics_.SetEpoch(5, true);
  metrics_.SetMemory(1000, 200);
  EXPECT_EQ(Value("ccs_epoch"), 5);
  EXPECT_EQ(Value("ccs_serving"), 1);
  EXPECT_EQ(Value("ccs_state_bytes"), 1000);
  EXPECT_EQ(Value("ccs_workspace_bytes"), 200);
  metrics_.SetEpoch(6, false);
  EXPECT_EQ(Value("ccs_serving"), 0);
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("ccs_build_info{device=\"cpu, AVX2\",version=\"1.2.3 (abc)\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("ccs_spec_info{dim=\"128\",head=\"cosface\",num_classes=\"20932\",num_shards=\"3\","
                        "rank=\"1\",sample_rate=\"0.1\"} 1\n"));
}

TEST_F(MetricsTest, ServesTheSameTextOverHttp) {
  const absl::StatusOr<int> port = metrics_.Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  metrics_.SetEpoch(7, true);
  const std::string response = HttpGet(*port, "/metrics");
  EXPECT_THAT(response, HasSubstr("200 OK"));
  EXPECT_EQ(MetricValue(response, "ccs_epoch"), 7);
  EXPECT_THAT(HttpGet(*port, "/other"), Not(HasSubstr("ccs_epoch")));
}

TEST_F(MetricsTest, AnAddressThatCannotBeBoundIsNamed) {
  const absl::StatusOr<int> port = metrics_.Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok());
  Metrics other({});
  const std::string address = absl::StrCat("127.0.0.1:", *port);
  const absl::StatusOr<int> second = other.Serve(address);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

}  // namespace
}  // namespace ccs
