#include "tests/distributed/trainers.h"

#include <future>
#include <numeric>
#include <random>

namespace ccs::testing {

Rows RandomRows(int64_t num_classes, int dim, int rows, int64_t step, int trainer_rank) {
  std::mt19937_64 random(static_cast<uint64_t>(step) * 1000 + trainer_rank);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int64_t> label(-1, num_classes - 1);
  Rows result{std::vector<float>(static_cast<size_t>(rows) * dim), std::vector<int64_t>(rows)};
  for (float& value : result.features) value = normal(random);
  for (int64_t& y : result.labels) y = label(random);
  return result;
}

absl::StatusOr<Trainers> Trainers::Open(const ProcessCluster& cluster, int num_trainers,
                                        absl::Duration timeout) {
  Trainers trainers;
  for (int rank = 0; rank < num_trainers; ++rank) {
    auto client = cluster.Connect(timeout);
    if (!client.ok()) return client.status();
    auto run = (*client)->OpenRun({.run_id = "test", .trainer_rank = rank, .num_trainers = num_trainers});
    if (!run.ok()) return run.status();
    trainers.clients_.push_back(*std::move(client));
    trainers.runs_.push_back(*std::move(run));
  }
  return trainers;
}

std::vector<absl::StatusOr<client::StepResult>> Trainers::Step(const std::vector<Rows>& rows,
                                                               float learning_rate, bool checkpoint) {
  std::vector<std::future<absl::StatusOr<client::StepResult>>> pending;
  for (size_t i = 0; i < runs_.size(); ++i) {
    client::StepInput input;
    input.features = rows[i].features;
    input.labels = rows[i].labels;
    input.learning_rate = learning_rate;
    input.checkpoint = checkpoint;
    pending.push_back(runs_[i]->StepAsync(input));
  }
  std::vector<absl::StatusOr<client::StepResult>> results;
  for (auto& result : pending) results.push_back(result.get());
  return results;
}

std::vector<int64_t> AllClasses(int64_t num_classes) {
  std::vector<int64_t> ids(num_classes);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace ccs::testing
