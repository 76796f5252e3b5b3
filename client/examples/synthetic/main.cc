// A trainer to try a deployment with: a backbone of one matrix learns made-up classes on any cluster.
#include <ccs/client/client.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kInputs = 64;         // width of a sample
constexpr float kNoise = 0.3f;      // standard deviation, against 1 between classes
constexpr int kReportedDigits = 9;  // enough to compare a loss with a metric

volatile std::sig_atomic_t stop_asked = 0;

struct Options {
  ccs::client::ClientOptions client;
  double timeout_s = 60;
  std::string run_id = "synthetic";
  int64_t steps = 200;
  int batch = 128;
  float learning_rate = 0.1f;
  int64_t checkpoint_every = 0;
  int pause_ms = 0;
};

struct Batch {
  std::vector<float> samples;   // [batch, kInputs]
  std::vector<int64_t> labels;  // [batch]
};

// The point of a class is a pure function of its id.
Batch Draw(const Options& options, int64_t num_classes, std::mt19937_64& random) {
  Batch batch;
  std::uniform_int_distribution<int64_t> any_class(0, num_classes - 1);
  std::normal_distribution<float> noise(0, kNoise);
  for (int i = 0; i < options.batch; ++i) {
    batch.labels.push_back(any_class(random));
    std::mt19937_64 of_class(batch.labels.back());
    std::normal_distribution<float> point;
    for (int d = 0; d < kInputs; ++d) batch.samples.push_back(point(of_class) + noise(random));
  }
  return batch;
}

class Backbone {
 public:
  Backbone(int dim, std::mt19937_64& random) : dim_(dim), matrix_(static_cast<size_t>(dim) * kInputs) {
    std::normal_distribution<float> normal(0, 1.0f / 8);  // 1 / sqrt(kInputs)
    for (float& value : matrix_) value = normal(random);
  }

  // [rows, dim] of samples [rows, kInputs].
  std::vector<float> Forward(const std::vector<float>& samples) const {
    std::vector<float> features(samples.size() / kInputs * dim_);
    for (size_t i = 0; i < features.size(); ++i) {
      const float* sample = &samples[i / dim_ * kInputs];
      const float* weights = &matrix_[i % dim_ * kInputs];
      for (int k = 0; k < kInputs; ++k) features[i] += weights[k] * sample[k];
    }
    return features;
  }

  // One step down the gradient [rows, dim] that the features had.
  void Backward(const std::vector<float>& samples, const std::vector<float>& gradient, float learning_rate) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const float* sample = &samples[i / dim_ * kInputs];
      float* weights = &matrix_[i % dim_ * kInputs];
      for (int k = 0; k < kInputs; ++k) weights[k] -= learning_rate * gradient[i] * sample[k];
    }
  }

 private:
  int dim_;
  std::vector<float> matrix_;  // [dim, kInputs]
};

absl::Status Train(const Options& options) {
  const auto client = ccs::client::Client::Connect(options.client);
  if (!client.ok()) return client.status();
  const auto run =
      (*client)->OpenRun({.run_id = options.run_id, .trainer_rank = 0, .num_trainers = 1, .takeover = true});
  if (!run.ok()) return run.status();

  std::mt19937_64 random(1);
  Backbone backbone((*client)->info().dim, random);
  std::cout.precision(kReportedDigits);
  for (int64_t i = 1; (options.steps == 0 || i <= options.steps) && stop_asked == 0; ++i) {
    const Batch batch = Draw(options, (*client)->info().num_classes, random);
    const std::vector<float> features = backbone.Forward(batch.samples);
    const auto step =
        (*run)->Step({.features = features,
                      .labels = batch.labels,
                      .learning_rate = options.learning_rate,
                      .checkpoint = options.checkpoint_every > 0 && i % options.checkpoint_every == 0});
    if (!step.ok()) return step.status();
    backbone.Backward(batch.samples, step->feature_grad, options.learning_rate);
    std::cout << "step " << step->step << ", loss " << step->loss << std::endl;
    std::this_thread::sleep_for(std::chrono::milliseconds(options.pause_ms));
  }
  return (*run)->Close();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a backbone of one matrix on made-up classes, against a running cluster.", "synthetic");
  app.add_option("--addresses", options.client.addresses, "host:port of shards, several after commas")
      ->capture_default_str()
      ->delimiter(',');
  app.add_option("--timeout", options.timeout_s, "Seconds to wait for the cluster, in each call")
      ->capture_default_str();
  app.add_option("--run_id", options.run_id, "Name of the run")->capture_default_str();
  app.add_option("--steps", options.steps, "Steps; 0: until SIGTERM or SIGINT")->capture_default_str();
  app.add_option("--batch", options.batch, "Samples a step")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--learning_rate", options.learning_rate, "Of backbone and centres")->capture_default_str();
  app.add_option("--checkpoint_every", options.checkpoint_every, "Steps between checkpoints; 0: none")
      ->capture_default_str();
  app.add_option("--pause_ms", options.pause_ms, "Rest after a step")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  options.client.timeout = absl::Seconds(options.timeout_s);
  for (const int signal : {SIGTERM, SIGINT}) std::signal(signal, [](int) { stop_asked = 1; });

  const absl::Status status = Train(options);
  if (status.ok()) return 0;
  std::cerr << "synthetic: " << status << "\n";
  return 1;
}
