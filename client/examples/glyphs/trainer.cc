#include "client/examples/glyphs/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/examples/glyphs/augment.h"
#include "client/examples/glyphs/matching.h"

namespace glyphs {
namespace {

constexpr int64_t kEmbeddedAtOnce = 512;  // pictures
constexpr int64_t kCentresAtOnce = 4096;  // a call of ReadCentres or WriteCentres

std::vector<int64_t> Range(int64_t first, int64_t last) {
  std::vector<int64_t> range(static_cast<size_t>(last - first));
  std::iota(range.begin(), range.end(), first);
  return range;
}

absl::StatusOr<std::vector<float>> ReadAllCentres(ccs::client::Client& client) {
  std::vector<float> centres;
  const int64_t num_classes = client.info().num_classes;
  for (int64_t first = 0; first < num_classes; first += kCentresAtOnce) {
    auto some = client.ReadCentres(Range(first, std::min(first + kCentresAtOnce, num_classes)));
    if (!some.ok()) return some.status();
    centres.insert(centres.end(), some->begin(), some->end());
  }
  return centres;
}

absl::Status WriteAllCentres(ccs::client::Client& client, absl::Span<const float> centres) {
  const int64_t num_classes = static_cast<int64_t>(centres.size()) / kDim;
  for (int64_t first = 0; first < num_classes; first += kCentresAtOnce) {
    const std::vector<int64_t> ids = Range(first, std::min(first + kCentresAtOnce, num_classes));
    absl::Status status =
        client.WriteCentres(ids, centres.subspan(static_cast<size_t>(first * kDim), ids.size() * kDim));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Unit embeddings of `indices`, [indices, kDim], in even parts so that none is too small for its own
// statistics.
std::vector<float> EmbedAll(Backbone& backbone, const GlyphSet& set, absl::Span<const int64_t> indices,
                            Backbone::Statistics statistics) {
  std::vector<float> embeddings;
  embeddings.reserve(indices.size() * kDim);
  const size_t parts = std::max<size_t>(1, indices.size() / kEmbeddedAtOnce);
  for (size_t part = 0; part < parts; ++part) {
    const size_t first = indices.size() * part / parts, last = indices.size() * (part + 1) / parts;
    const std::vector<float> some =
        backbone.Embed(PlainBatch(set, indices.subspan(first, last - first)), statistics);
    embeddings.insert(embeddings.end(), some.begin(), some.end());
  }
  return embeddings;
}

}  // namespace

Trainer::Trainer(const Options& options, const Dataset& dataset, ccs::client::Client& client,
                 const std::atomic<int>& stop_signal)
    : options_(options),
      dataset_(dataset),
      client_(client),
      stop_signal_(stop_signal),
      schedule_(dataset.training.size(), options.batch, options.epochs),
      order_(dataset.training.size(), options.batch, options.seed),
      backbone_(options.seed, options.threads) {}

absl::Status Trainer::Start() {
  if (!options_.output.empty()) {
    auto files = BackboneFiles::Open(options_.output);
    if (!files.ok()) return files.status();
    files_ = *std::move(files);
  }
  auto run = client_.OpenRun({.run_id = "glyphs"});
  if (!run.ok()) return run.status();
  run_ = *std::move(run);
  step_ = run_->position().step;
  const bool has_files = files_.has_value() && !files_->Steps().empty();
  if (options_.resume && (step_ > 0 || has_files)) return Resume(step_);
  if (step_ > 0) {
    return absl::FailedPreconditionError(absl::StrCat("the cluster is at step ", step_,
                                                      " already: go on with --resume, or start a cluster "
                                                      "without an earlier checkpoint"));
  }
  if (has_files) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.output,
                     " holds backbone files of an earlier training: go on with "
                     "--resume, remove them or choose another --output"));
  }
  return WriteFirstCentres();
}

absl::Status Trainer::Resume(int64_t cluster_step) {
  const absl::StatusOr<std::string> path = files_->Resume(cluster_step);
  if (!path.ok()) return path.status();
  std::printf("resuming after step %lld of %lld with %s\n", static_cast<long long>(cluster_step),
              static_cast<long long>(schedule_.num_steps()), path->c_str());
  return backbone_.Load(*path, RunDescription(options_));
}

std::vector<float> Trainer::ClassSums(const std::vector<int64_t>& order, Backbone::Statistics statistics) {
  const std::vector<float> embeddings = EmbedAll(backbone_, dataset_.training, order, statistics);
  std::vector<float> sums(dataset_.characters.size() * kDim);
  for (size_t row = 0; row < order.size(); ++row) {
    const int64_t label = dataset_.training.labels[static_cast<size_t>(order[row])];
    for (size_t d = 0; d < kDim; ++d)
      sums[static_cast<size_t>(label) * kDim + d] += embeddings[row * kDim + d];
  }
  return sums;
}

// The mean embedding of each class by the untrained network. With five pictures a class, centres that start
// at random would learn nothing in the first epoch.
absl::Status Trainer::WriteFirstCentres() {
  std::printf("writing the first centres: class means of the untrained network\n");
  std::fflush(stdout);
  // Shuffled, because each batch is normalised by its own statistics and should mix the fonts.
  std::vector<float> centres = ClassSums(
      ShuffledIndices(dataset_.training.size(), options_.seed, /*epoch=*/0), Backbone::Statistics::kOfBatch);
  std::vector<float> counts(dataset_.characters.size());
  for (int64_t label : dataset_.training.labels) ++counts[static_cast<size_t>(label)];
  for (size_t i = 0; i < centres.size(); ++i) centres[i] /= counts[i / kDim];
  return WriteAllCentres(client_, centres);
}

std::future<Trainer::Batch> Trainer::PrepareBatch(int64_t step) {
  const absl::Span<const int64_t> order = order_.Batch(step);
  return std::async(std::launch::async, [this, step, indices = std::vector(order.begin(), order.end())] {
    Batch batch;
    batch.pictures = AugmentedBatch(dataset_.training, indices, options_.seed, step);
    for (int64_t index : indices)
      batch.labels.push_back(dataset_.training.labels[static_cast<size_t>(index)]);
    return batch;
  });
}

absl::StatusOr<TrainingSummary> Trainer::Train() {
  Progress progress(schedule_, options_.epochs);
  absl::Status status;
  bool stopping = false;
  std::future<Batch> next;
  if (step_ < schedule_.num_steps()) next = PrepareBatch(step_ + 1);
  while (status.ok() && !stopping && step_ < schedule_.num_steps()) {
    const Batch batch = next.get();
    // Drawn while this step is computed.
    if (step_ + 1 < schedule_.num_steps()) next = PrepareBatch(step_ + 2);
    stopping = stop_signal_ != 0;
    status = TrainStep(step_ + 1, batch, stopping, progress);
  }
  const TrainingSummary summary = progress.Finish();
  if (status.ok()) status = run_->Close();
  if (!status.ok()) return status;
  return summary;
}

absl::Status Trainer::TrainStep(int64_t step, const Batch& batch, bool stopping, Progress& progress) {
  const float rate = schedule_.RateFactor(step);
  const bool due = step == schedule_.num_steps() || stopping ||
                   (options_.checkpoint_every > 0 && step % options_.checkpoint_every == 0);
  ccs::client::StepInput input;
  input.features = backbone_.Forward(batch.pictures);
  input.labels = batch.labels;
  input.learning_rate = options_.freeze_centres ? 0 : options_.centre_lr * rate;
  input.margin = ccs::client::Margin{.m3 = options_.margin * schedule_.MarginFactor(step)};
  input.checkpoint = due && files_.has_value();

  const auto sent = std::chrono::steady_clock::now();
  const absl::StatusOr<ccs::client::StepResult> result = run_->Step(input);
  const std::chrono::duration<double> head = std::chrono::steady_clock::now() - sent;
  if (!result.ok()) {
    // A cluster that is stopped checkpoints its last step, which is ours.
    const absl::Status saved = SaveBackbone(step_);
    if (!saved.ok()) std::fprintf(stderr, "\n%s\n", saved.ToString().c_str());
    return result.status();
  }
  backbone_.Backward(result->feature_grad, options_.lr * rate);
  step_ = step;
  progress.Step(step, static_cast<int64_t>(batch.labels.size()), result->loss, head.count());
  return input.checkpoint ? SaveBackbone(step) : absl::OkStatus();
}

absl::Status Trainer::SaveBackbone(int64_t step) {
  if (!files_.has_value() || step == 0) return absl::OkStatus();
  return files_->Write(
      step, [this](const std::string& path) { return backbone_.Save(path, RunDescription(options_)); });
}

absl::StatusOr<Accuracy> Trainer::Test() {
  const absl::StatusOr<std::vector<float>> centres = ReadAllCentres(client_);
  if (!centres.ok()) return centres.status();
  const GlyphSet& test = dataset_.held_out;
  const std::vector<float> queries =
      EmbedAll(backbone_, test, Range(0, test.size()), Backbone::Statistics::kLearned);
  const std::vector<float> means =
      ClassSums(Range(0, dataset_.training.size()), Backbone::Statistics::kLearned);
  return Accuracy{.against_centres = RankOne(queries, test.labels, *centres),
                  .against_class_means = RankOne(queries, test.labels, means)};
}

}  // namespace glyphs
