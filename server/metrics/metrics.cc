#include "server/metrics/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ccs {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

Counter& AddCounter(Registry& registry, const char* name, const char* help) {
  return BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

Gauge& AddGauge(Registry& registry, const char* name, const char* help) {
  return BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

Family<Histogram>& AddHistograms(Registry& registry, const char* name, const char* help) {
  return BuildHistogram().Name(name).Help(help).Register(registry);
}

// Two buckets an octave or so, 0.1 ms to 1 minute: a small step's phases up to a very large step.
const Histogram::BucketBoundaries kStepBuckets = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
// A checkpoint is bound by the disk: 10 ms to an hour.
const Histogram::BucketBoundaries kCheckpointBuckets = {0.01, 0.05, 0.1, 0.5, 1,   5,
                                                        10,   30,   60,  300, 900, 3600};

// Every series. Collects like its registry, with the age of the last checkpoint as of this moment.
class Series : public prometheus::Collectable {
 public:
  explicit Series(const BuildAndSpec& info);

  std::vector<prometheus::MetricFamily> Collect() const override {
    const double written = last_checkpoint_unix_s.load();
    if (written > 0) {
      checkpoint_age.Add({}).Set(absl::ToUnixMicros(absl::Now()) * 1e-6 - written);
      checkpoint_timestamp.Add({}).Set(written);
    }
    return registry.Collect();
  }

  Registry registry;

  Gauge& loss;
  Gauge& learning_rate;
  Gauge& position_step;
  Counter& steps;
  Counter& batch_samples;
  Counter& own_samples;
  Counter& labelled_samples;
  Counter& sampled_classes;
  Counter& positive_classes;
  Histogram& step_duration;
  Family<Histogram>& phase_family;
  Histogram& wait;
  Histogram& gather;
  Histogram& sample;
  Histogram& pass1;
  Histogram& log;
  Histogram& staging;
  Histogram& exchange;
  Histogram& reply;
  Histogram& pass2;

  Family<Counter>& requests;
  Family<Counter>& rejected;
  Family<Histogram>& request_duration;

  Counter& checkpoints;
  Counter& checkpoint_failures;
  Counter& mirrored;
  Counter& mirror_failures;
  Counter& checkpoint_stall;
  Counter& checkpoint_written_bytes;
  Histogram& checkpoint_duration;
  Gauge& checkpoint_bytes;
  // Without a series until the first checkpoint.
  Family<Gauge>& checkpoint_timestamp;
  Family<Gauge>& checkpoint_age;
  std::atomic<double> last_checkpoint_unix_s{0};

  Gauge& epoch;
  Gauge& serving;
  Gauge& state_bytes;
  Gauge& workspace_bytes;

 private:
  Histogram& Phase(const char* name) { return phase_family.Add({{"phase", name}}, kStepBuckets); }
};

Series::Series(const BuildAndSpec& info)
    : loss(AddGauge(registry, "ccs_loss", "Mean loss over the labelled rows of the last step.")),
      learning_rate(AddGauge(registry, "ccs_learning_rate", "Learning rate of the last step.")),
      position_step(AddGauge(registry, "ccs_position_step", "Number of the last step applied.")),
      steps(AddCounter(registry, "ccs_steps_total", "Steps applied by this process.")),
      batch_samples(
          AddCounter(registry, "ccs_batch_samples_total", "Rows of all trainers in applied steps.")),
      own_samples(
          AddCounter(registry, "ccs_own_samples_total", "Rows of trainers at home here in applied steps.")),
      labelled_samples(AddCounter(registry, "ccs_labelled_samples_total",
                                  "Labelled rows of all trainers in applied steps.")),
      sampled_classes(
          AddCounter(registry, "ccs_sampled_classes_total", "Rows of this shard sampled by steps.")),
      positive_classes(AddCounter(registry, "ccs_positive_classes_total",
                                  "Rows of this shard that were some label's class in a step.")),
      step_duration(AddHistograms(registry, "ccs_step_duration_seconds", "From Go to the update applied.")
                        .Add({}, kStepBuckets)),
      phase_family(
          AddHistograms(registry, "ccs_step_phase_duration_seconds", "Time in each phase of a step.")),
      wait(Phase("wait")),
      gather(Phase("gather")),
      sample(Phase("sample")),
      pass1(Phase("pass1")),
      log(Phase("log")),
      staging(Phase("staging")),
      exchange(Phase("exchange")),
      reply(Phase("reply")),
      pass2(Phase("pass2")),
      requests(BuildCounter()
                   .Name("ccs_requests_total")
                   .Help("Finished calls by method and gRPC status code.")
                   .Register(registry)),
      rejected(BuildCounter()
                   .Name("ccs_requests_rejected_total")
                   .Help("Calls that ended in an error, by reason.")
                   .Register(registry)),
      request_duration(AddHistograms(registry, "ccs_request_duration_seconds",
                                     "From a call's arrival to its end, by method; waiting included.")),
      checkpoints(AddCounter(registry, "ccs_checkpoints_total", "Checkpoints written by this shard.")),
      checkpoint_failures(
          AddCounter(registry, "ccs_checkpoint_failures_total", "Checkpoints this shard failed to write.")),
      mirrored(AddCounter(registry, "ccs_mirrored_checkpoints_total",
                          "Checkpoints copied to the mirror by this shard.")),
      mirror_failures(AddCounter(registry, "ccs_mirror_failures_total",
                                 "Checkpoints this shard failed to copy to the mirror.")),
      checkpoint_stall(AddCounter(registry, "ccs_checkpoint_stall_seconds_total",
                                  "Time that training waited for checkpoints being written.")),
      checkpoint_written_bytes(
          AddCounter(registry, "ccs_checkpoint_written_bytes_total",
                     "Bytes written by checkpoints; files shared with an earlier one are not written.")),
      checkpoint_duration(
          AddHistograms(registry, "ccs_checkpoint_duration_seconds", "Time to write this shard's checkpoint.")
              .Add({}, kCheckpointBuckets)),
      checkpoint_bytes(AddGauge(registry, "ccs_checkpoint_bytes", "Size of this shard's last checkpoint.")),
      checkpoint_timestamp(BuildGauge()
                               .Name("ccs_checkpoint_timestamp_seconds")
                               .Help("Unix time of the last checkpoint written by this process.")
                               .Register(registry)),
      checkpoint_age(BuildGauge()
                         .Name("ccs_checkpoint_age_seconds")
                         .Help("Time since the last checkpoint written by this process.")
                         .Register(registry)),
      epoch(AddGauge(registry, "ccs_epoch", "Formation of the shard group; grows with every re-formation.")),
      serving(AddGauge(registry, "ccs_serving", "1 while the group serves steps, else 0.")),
      state_bytes(AddGauge(registry, "ccs_state_bytes", "Memory of weights and momentum.")),
      workspace_bytes(
          AddGauge(registry, "ccs_workspace_bytes", "Memory of the backend besides weights and momentum.")) {
  BuildGauge()
      .Name("ccs_build_info")
      .Help("Always 1; what runs here.")
      .Register(registry)
      .Add({{"version", info.version}, {"device", info.device}})
      .Set(1);
  BuildGauge()
      .Name("ccs_spec_info")
      .Help("Always 1; what is trained, and which part of it here.")
      .Register(registry)
      .Add({{"rank", absl::StrCat(info.rank)},
            {"num_shards", absl::StrCat(info.num_shards)},
            {"num_classes", absl::StrCat(info.num_classes)},
            {"dim", absl::StrCat(info.dim)},
            {"sample_rate", absl::StrCat(info.sample_rate)},
            {"head", info.head}})
      .Set(1);
}

}  // namespace

struct Metrics::Impl {
  std::shared_ptr<Series> series;  // shared with a scrape in progress
  std::unique_ptr<prometheus::Exposer> exposer;
};

Metrics::Metrics(const BuildAndSpec& info)
    : impl_(std::make_unique<Impl>(Impl{.series = std::make_shared<Series>(info), .exposer = nullptr})) {}
Metrics::~Metrics() = default;

void Metrics::StepFinished(const StepObservation& step) {
  impl_->series->loss.Set(step.loss);
  impl_->series->learning_rate.Set(step.learning_rate);
  impl_->series->position_step.Set(static_cast<double>(step.step));
  impl_->series->steps.Increment();
  impl_->series->batch_samples.Increment(static_cast<double>(step.batch_rows));
  impl_->series->own_samples.Increment(static_cast<double>(step.own_rows));
  impl_->series->labelled_samples.Increment(static_cast<double>(step.labelled_rows));
  impl_->series->sampled_classes.Increment(static_cast<double>(step.sampled_classes));
  impl_->series->positive_classes.Increment(static_cast<double>(step.positives));

  const StepPhases& phases = step.phases;
  impl_->series->wait.Observe(absl::ToDoubleSeconds(phases.wait));
  impl_->series->gather.Observe(absl::ToDoubleSeconds(phases.gather));
  impl_->series->sample.Observe(absl::ToDoubleSeconds(phases.sample));
  impl_->series->pass1.Observe(absl::ToDoubleSeconds(phases.pass1));
  impl_->series->log.Observe(absl::ToDoubleSeconds(phases.log));
  impl_->series->exchange.Observe(absl::ToDoubleSeconds(phases.exchange));
  impl_->series->reply.Observe(absl::ToDoubleSeconds(phases.reply));
  impl_->series->staging.Observe(absl::ToDoubleSeconds(phases.staging));
  impl_->series->pass2.Observe(absl::ToDoubleSeconds(phases.pass2));
  impl_->series->step_duration.Observe(absl::ToDoubleSeconds(phases.gather + phases.sample + phases.pass1 +
                                                             phases.log + phases.exchange + phases.reply +
                                                             phases.staging + phases.pass2));
}

void Metrics::RequestRejected(const std::string& reason) {
  impl_->series->rejected.Add({{"reason", reason}}).Increment();
}

void Metrics::RequestFinished(const std::string& method, const std::string& code, absl::Duration duration) {
  impl_->series->requests.Add({{"method", method}, {"code", code}}).Increment();
  impl_->series->request_duration.Add({{"method", method}}, kStepBuckets)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CheckpointWritten(absl::Duration duration, int64_t bytes, int64_t new_bytes) {
  impl_->series->checkpoint_written_bytes.Increment(static_cast<double>(new_bytes));
  impl_->series->checkpoints.Increment();
  impl_->series->checkpoint_duration.Observe(absl::ToDoubleSeconds(duration));
  impl_->series->checkpoint_bytes.Set(static_cast<double>(bytes));
  impl_->series->last_checkpoint_unix_s = absl::ToUnixMicros(absl::Now()) * 1e-6;
}

void Metrics::CheckpointStalled(absl::Duration duration) {
  impl_->series->checkpoint_stall.Increment(absl::ToDoubleSeconds(duration));
}

void Metrics::CheckpointMirrored(bool ok) {
  (ok ? impl_->series->mirrored : impl_->series->mirror_failures).Increment();
}

void Metrics::CheckpointFailed() { impl_->series->checkpoint_failures.Increment(); }

void Metrics::SetEpoch(uint64_t epoch, bool serving) {
  impl_->series->epoch.Set(static_cast<double>(epoch));
  impl_->series->serving.Set(serving ? 1 : 0);
}

void Metrics::SetMemory(int64_t state_bytes, int64_t workspace_bytes) {
  impl_->series->state_bytes.Set(static_cast<double>(state_bytes));
  impl_->series->workspace_bytes.Set(static_cast<double>(workspace_bytes));
}

absl::StatusOr<int> Metrics::Serve(const std::string& address) {
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address);
    exposer->RegisterCollectable(impl_->series);
    const int port = exposer->GetListeningPorts().at(0);
    impl_->exposer = std::move(exposer);
    return port;
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address,
                                               ": is the address this host's, and the port free? (",
                                               error.what(), ")"));
  }
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(impl_->series->Collect()); }

}  // namespace ccs
