// The smallest trainer: eight features that are parameters themselves, each learning a class of its own.
#include <ccs/client/client.h>

#include <iostream>
#include <random>
#include <vector>

int Fail(const absl::Status& status) {
  std::cerr << status << "\n";
  return 1;
}

int main(int argc, char** argv) {
  const auto client = ccs::client::Client::Connect(
      {.addresses = {argc > 1 ? argv[1] : "localhost:8001"}, .timeout = absl::Seconds(5)});
  if (!client.ok()) return Fail(client.status());
  const auto run = (*client)->OpenRun({.run_id = "smallest", .trainer_rank = 0, .num_trainers = 1});
  if (!run.ok()) return Fail(run.status());

  const std::vector<int64_t> labels = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<float> features(labels.size() * (*client)->info().dim);  // [rows, dim]
  std::mt19937 random(1);
  for (float& value : features) value = std::normal_distribution<float>()(random);

  for (int i = 0; i < 100; ++i) {
    const auto step = (*run)->Step({.features = features, .labels = labels, .learning_rate = 0.1f});
    if (!step.ok()) return Fail(step.status());
    for (size_t j = 0; j < features.size(); ++j) features[j] -= 0.1f * step->feature_grad[j];
    std::cout << "step " << step->step << ", loss " << step->loss << "\n";
  }
}
