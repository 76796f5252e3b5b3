#include "tests/bench/step_bench.h"

#include <ccs/v1/admin.grpc.pb.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ccs/client/client.h"
#include "tests/testing/http.h"
#include "tests/testing/process_cluster.h"
#include "tests/testing/step_reference.h"

namespace ccs::bench {
namespace {

using testing::ProcessCluster;
using testing::ProcessClusterOptions;
using testing::TempDir;

constexpr float kLearningRate = 0.1f;
constexpr double kMargin = 0.4;  // cosface's default

struct Batch {
  std::vector<float> features;  // [rows, dim]
  std::vector<int64_t> labels;  // [rows]
};

client::StepInput Input(const Batch& batch) {
  client::StepInput input;
  input.features = batch.features;
  input.labels = batch.labels;
  input.learning_rate = kLearningRate;
  return input;
}

void Normalise(float* row, int dim) {
  const double norm = std::sqrt(std::inner_product(row, row + dim, row, 0.0));
  for (int d = 0; d < dim; ++d) row[d] = static_cast<float>(row[d] / norm);
}

Batch RandomBatch(const StepBenchOptions& options, int rows, std::mt19937_64& random) {
  Batch batch{std::vector<float>(static_cast<size_t>(rows) * options.dim), std::vector<int64_t>(rows)};
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int64_t> label(0, options.classes - 1);
  for (float& value : batch.features) value = normal(random);
  for (int64_t& y : batch.labels) y = label(random);
  for (int i = 0; i < rows; ++i)
    Normalise(&batch.features[static_cast<size_t>(i) * options.dim], options.dim);
  return batch;
}

// Turns each feature towards its own centre: half of them to cosine 0.7, a quarter to 0.6, a quarter to 0.5.
absl::Status TurnToCentres(client::Client& client, int dim, Batch& batch) {
  std::vector<int64_t> ids = batch.labels;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const absl::StatusOr<std::vector<float>> centres = client.ReadCentres(ids);
  if (!centres.ok()) return centres.status();
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    const size_t row = std::lower_bound(ids.begin(), ids.end(), batch.labels[i]) - ids.begin();
    std::vector<float> centre(centres->begin() + static_cast<int64_t>(row) * dim,
                              centres->begin() + static_cast<int64_t>(row + 1) * dim);
    Normalise(centre.data(), dim);
    float* feature = &batch.features[i * dim];
    const float along = std::inner_product(feature, feature + dim, centre.begin(), 0.0f);
    for (int d = 0; d < dim; ++d) feature[d] -= along * centre[d];
    Normalise(feature, dim);
    const float cosine = i % 4 < 2 ? 0.7f : i % 4 == 2 ? 0.6f : 0.5f;
    const float sine = std::sqrt(1 - cosine * cosine);
    for (int d = 0; d < dim; ++d) feature[d] = cosine * centre[d] + sine * feature[d];
  }
  return absl::OkStatus();
}

std::string Model(const StepBenchOptions& options) {
  std::string precision = options.precision;
  std::transform(precision.begin(), precision.end(), precision.begin(), ::toupper);
  return absl::StrCat("num_classes: ", options.classes, "\ndim: ", options.dim, "\nhead { cosface {} }\n",
                      "sample_rate: ", options.sample_rate, "\nprecision: ", precision,
                      "\nseed: ", options.seed, "\nmax_batch: ", options.batch, "\n");
}

std::vector<std::string> DurabilityFlags(const StepBenchOptions& options,
                                         const std::filesystem::path& checkpoint_dir) {
  if (options.checkpoint_dir.empty()) return {};
  return {absl::StrCat("--checkpoint_dir=", checkpoint_dir.string()),
          absl::StrCat("--step_log=", options.step_log),
          absl::StrCat("--checkpoint_every=", options.checkpoint_every),
          absl::StrCat("--checkpoint_staging_bytes=", options.checkpoint_staging_bytes)};
}

// A cluster with one open run a shard.
class Bench {
 public:
  explicit Bench(const StepBenchOptions& options)
      : checkpoints_(options.checkpoint_dir),
        cluster_(ProcessClusterOptions{.server_binary = options.server_binary,
                                       .num_shards = options.shards,
                                       .model = Model(options),
                                       .flags = DurabilityFlags(options, checkpoints_.path()),
                                       .threads = options.threads},
                 directory_.path()) {}

  absl::Status Start(const StepBenchOptions& options) {
    if (absl::Status started = cluster_.StartAll(); !started.ok()) return started;
    for (int trainer = 0; trainer < options.shards; ++trainer) {
      auto client = cluster_.Connect(absl::Minutes(5));
      if (!client.ok()) {
        return absl::Status(client.status().code(),
                            absl::StrCat(client.status().message(), "\n", cluster_.log(0)));
      }
      auto run =
          (*client)->OpenRun({.run_id = "bench", .trainer_rank = trainer, .num_trainers = options.shards});
      if (!run.ok()) return run.status();
      clients_.push_back(*std::move(client));
      runs_.push_back(*std::move(run));
    }
    return absl::OkStatus();
  }

  ProcessCluster& cluster() { return cluster_; }
  client::Client& client() { return *clients_[0]; }
  client::Run& run(int trainer) { return *runs_[trainer]; }

 private:
  TempDir directory_;
  TempDir checkpoints_;
  ProcessCluster cluster_;
  std::vector<std::unique_ptr<client::Client>> clients_;
  std::vector<std::unique_ptr<client::Run>> runs_;
};

// What the step must give: loss, feature gradient of the mean loss, and centres afterwards.
absl::Status CompareWithReference(const StepBenchOptions& options, const std::vector<float>& before,
                                  const Batch& batch, double loss, const std::vector<double>& gradient,
                                  const std::vector<float>& after) {
  std::vector<testing::ReferenceShard> shards =
      testing::EmptyReferenceShards(options.classes, 1, options.dim);
  shards[0].weight.assign(before.begin(), before.end());
  std::vector<int64_t> every_row(options.classes);
  std::iota(every_row.begin(), every_row.end(), 0);
  const std::vector<double> features(batch.features.begin(), batch.features.end());
  const testing::ReferenceResult want =
      testing::ReferenceStep(&shards, {every_row}, features, batch.labels, options.dim, {.m3 = kMargin},
                             {.learning_rate = kLearningRate}, /*normalise_features=*/true);
  const double accuracy = options.precision == "fp32" ? 1e-6 : 1e-2;
  const double errors[] = {std::abs(loss - want.loss) / want.loss,
                           testing::RelativeError(gradient, want.gradient),
                           testing::RelativeError(after, shards[0].weight)};
  for (double error : errors) {
    if (!(error <= accuracy)) {
      return absl::InternalError(absl::StrCat("relative errors of loss, gradient, centres: ", errors[0], ", ",
                                              errors[1], ", ", errors[2], "; promised is ", accuracy));
    }
  }
  return absl::OkStatus();
}

// One step over every class of a small cluster, against the reference.
absl::Status Verify(StepBenchOptions options) {
  options.classes = std::min<int64_t>(options.classes, 2003);
  options.batch = std::max(options.shards, std::min(options.batch, 64));
  options.sample_rate = 1;
  Bench bench(options);
  if (absl::Status started = bench.Start(options); !started.ok()) return started;
  std::vector<int64_t> ids(options.classes);
  std::iota(ids.begin(), ids.end(), 0);
  const absl::StatusOr<std::vector<float>> before = bench.client().ReadCentres(ids);
  if (!before.ok()) return before.status();

  std::mt19937_64 random(options.seed);
  const int rows = options.batch / options.shards;
  std::vector<Batch> batches;
  std::vector<std::future<absl::StatusOr<client::StepResult>>> steps;
  batches.reserve(options.shards);
  steps.reserve(options.shards);
  for (int t = 0; t < options.shards; ++t) batches.push_back(RandomBatch(options, rows, random));
  for (int t = 0; t < options.shards; ++t) {
    steps.push_back(bench.run(t).StepAsync(Input(batches[t])));
  }
  double loss = 0;
  std::vector<double> gradient;
  Batch whole;
  for (int t = 0; t < options.shards; ++t) {
    const absl::StatusOr<client::StepResult> result = steps[t].get();
    if (!result.ok()) return result.status();
    loss = result->loss;
    for (float value : result->feature_grad) gradient.push_back(static_cast<double>(value) / options.shards);
    whole.features.insert(whole.features.end(), batches[t].features.begin(), batches[t].features.end());
    whole.labels.insert(whole.labels.end(), batches[t].labels.begin(), batches[t].labels.end());
  }
  const absl::StatusOr<std::vector<float>> after = bench.client().ReadCentres(ids);
  if (!after.ok()) return after.status();
  absl::Status compared = CompareWithReference(options, *before, whole, loss, gradient, *after);
  compared.Update(bench.cluster().Stop());
  return compared;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2, values.end());
  return values[values.size() / 2];
}

struct Timing {
  double seconds = 0;
  double loss = 0;
};

// `count` steps of all trainers at once; before each, `between` on trainer 0. Times are trainer 0's.
absl::StatusOr<std::vector<Timing>> TimeSteps(Bench& bench, const std::vector<Batch>& batches, int count,
                                              const std::function<absl::Status()>& between) {
  std::vector<Timing> timings;
  std::vector<absl::Status> failures(batches.size());
  std::barrier together(static_cast<int64_t>(batches.size()));
  const auto train = [&](size_t trainer) {
    for (int step = 0; step < count; ++step) {
      if (trainer == 0 && between != nullptr) failures[0].Update(between());
      together.arrive_and_wait();
      const absl::Time began = absl::Now();
      const absl::StatusOr<client::StepResult> result =
          bench.run(static_cast<int>(trainer)).Step(Input(batches[trainer]));
      failures[trainer].Update(result.status());
      if (trainer == 0 && result.ok()) {
        timings.push_back({absl::ToDoubleSeconds(absl::Now() - began), result->loss});
      }
    }
  };
  std::vector<std::thread> trainers;
  for (size_t trainer = 0; trainer < batches.size(); ++trainer) trainers.emplace_back(train, trainer);
  for (std::thread& trainer : trainers) trainer.join();
  for (const absl::Status& failure : failures) {
    if (!failure.ok()) return failure;
  }
  return timings;
}

int64_t LargestState(const std::string& address) {
  auto stub = v1::Admin::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::StatusReply reply;
  int64_t largest = 0;
  if (stub->Status(&context, {}, &reply).ok()) {
    for (const v1::ShardStatus& shard : reply.shards()) largest = std::max(largest, shard.state_bytes());
  }
  return largest;
}

DurabilityCost MeasureDurability(Bench& bench, int shards) {
  DurabilityCost slowest;
  double most = -1;
  for (int rank = 0; rank < shards; ++rank) {
    const std::string metrics = testing::HttpGet(bench.cluster().metrics_port(rank), "/metrics");
    const auto value = [&](const std::string& name) { return testing::MetricValue(metrics, name); };
    const std::string phase = "ccs_step_phase_duration_seconds";
    DurabilityCost cost;
    cost.log_wait_s = value(phase + "_sum{phase=\"log\"}") / value(phase + "_count{phase=\"log\"}");
    cost.stall_s = value("ccs_checkpoint_stall_seconds_total");
    cost.checkpoints = static_cast<int64_t>(value("ccs_checkpoints_total"));
    if (cost.checkpoints > 0) {
      cost.checkpoint_s =
          value("ccs_checkpoint_duration_seconds_sum") / static_cast<double>(cost.checkpoints);
    }
    cost.checkpoint_bytes = static_cast<int64_t>(value("ccs_checkpoint_bytes"));
    cost.written_bytes = static_cast<int64_t>(value("ccs_checkpoint_written_bytes_total"));
    if (const double total = cost.log_wait_s + cost.stall_s; total > most) {
      most = total;
      slowest = cost;
    }
  }
  return slowest;
}

}  // namespace

absl::StatusOr<StepBenchResult> RunStepBench(const StepBenchOptions& options) {
  if (options.shards < 1 || options.steps < 1 || options.batch < options.shards) {
    return absl::InvalidArgumentError("--shards and --steps must be at least 1, --batch at least --shards");
  }
  if (absl::Status verified = Verify(options); !verified.ok()) return verified;
  std::fprintf(stderr, "verified against the float64 reference; starting %d shards\n", options.shards);

  Bench bench(options);
  if (absl::Status started = bench.Start(options); !started.ok()) return started;
  std::mt19937_64 random(options.seed);
  std::vector<Batch> batches;
  for (int trainer = 0; trainer < options.shards; ++trainer) {
    batches.push_back(RandomBatch(options, options.batch / options.shards, random));
    if (options.data == "trained") {
      if (absl::Status turned = TurnToCentres(bench.client(), options.dim, batches.back()); !turned.ok()) {
        return turned;
      }
    }
  }

  absl::StatusOr<std::vector<Timing>> steady = TimeSteps(bench, batches, options.steps + 1, nullptr);
  if (!steady.ok()) return steady.status();
  // Reading a row waits for the engine, so that the next request finds it idle.
  const auto settle = [&] {
    for (const client::Shard& shard : bench.client().info().shards) {
      if (shard.num_classes == 0) continue;
      if (auto row = bench.client().ReadCentres({shard.class_start}); !row.ok()) return row.status();
    }
    return absl::OkStatus();
  };
  const absl::StatusOr<std::vector<Timing>> idle =
      TimeSteps(bench, batches, std::min(options.steps, 5), settle);
  if (!idle.ok()) return idle.status();

  std::vector<double> periods;
  std::vector<double> latencies;
  for (size_t i = 1; i < steady->size(); ++i) periods.push_back((*steady)[i].seconds);
  for (const Timing& timing : *idle) latencies.push_back(timing.seconds);
  StepBenchResult result;
  result.step_s = Median(periods);
  result.mean_step_s =
      std::accumulate(periods.begin(), periods.end(), 0.0) / static_cast<double>(periods.size());
  if (!options.checkpoint_dir.empty()) result.durability = MeasureDurability(bench, options.shards);
  const int rows = options.batch / options.shards * options.shards;  // every trainer has as many
  result.samples_per_s = rows / result.step_s;
  result.gradient_latency_s = Median(latencies);
  result.loss = idle->back().loss;
  if (!std::isfinite(result.loss)) return absl::InternalError("the loss is not finite");
  result.state_bytes = LargestState(bench.cluster().address(0));
  for (int rank = 0; rank < options.shards; ++rank) {
    result.peak_rss_mib =
        std::max(result.peak_rss_mib, bench.cluster().shard(rank).PeakResidentBytes() >> 20);
  }
  if (absl::Status stopped = bench.cluster().Stop(); !stopped.ok()) return stopped;
  return result;
}

}  // namespace ccs::bench
