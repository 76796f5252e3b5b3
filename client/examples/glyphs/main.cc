// glyphs: trains a recogniser of CJK ideographs whose class centres live on a ccs cluster. See README.md.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ccs/client/client.h"
#include "client/examples/glyphs/dataset.h"
#include "client/examples/glyphs/options.h"
#include "client/examples/glyphs/trainer.h"

namespace glyphs {
namespace {

std::atomic<int> stop_signal = 0;

// The first signal asks for a clean stop, a second one ends the process at once.
void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { stop_signal = signal; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

absl::Status Describe(const Options& options) {
  const auto characters = ClassCharacters(options.font_dir, options.classes);
  if (!characters.ok()) return characters.status();
  std::fputs(ModelSpecText(options, static_cast<int64_t>(characters->size()), kDim).c_str(), stdout);
  return absl::OkStatus();
}

absl::StatusOr<Dataset> LoadDataset(const Options& options) {
  auto dataset = RenderDataset(options.font_dir, options.classes, [](const std::string& font) {
    std::printf("rendering %s\n", font.c_str());
    std::fflush(stdout);
  });
  if (!dataset.ok()) return dataset;
  std::printf("%zu classes, %lld pictures to train with, %lld to test with\n", dataset->characters.size(),
              static_cast<long long>(dataset->training.size()),
              static_cast<long long>(dataset->held_out.size()));
  if (dataset->training.size() < options.batch) {
    return absl::InvalidArgumentError(absl::StrCat("--batch ", options.batch, " is more than the ",
                                                   dataset->training.size(), " pictures there are"));
  }
  if (options.shuffle_labels) ShuffleLabels(dataset->training, options.seed);
  return dataset;
}

absl::Status CheckFits(const Dataset& dataset, const ccs::client::ClusterInfo& info) {
  const auto num_classes = static_cast<int64_t>(dataset.characters.size());
  if (info.num_classes == num_classes && info.dim == kDim) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("the cluster has %d classes of dim %d, but this training needs %d of dim %d: start it "
                      "with the spec that "
                      "--describe prints",
                      info.num_classes, info.dim, num_classes, kDim));
}

absl::Status Report(const Options& options, const Dataset& dataset, const TrainingSummary& training,
                    const Accuracy& accuracy) {
  const std::string& font = HeldOutFont().name;
  std::printf(
      "rank-1 of %zu characters on %s, a font never seen in training (%lld pictures):\n"
      "  %5.2f %%  against the class centres, read back from the cluster\n"
      "  %5.2f %%  against the class means of the training pictures\n"
      "%.0f samples/s in %.0f s of training, %.0f %% of it waiting for the head\n",
      dataset.characters.size(), font.c_str(), static_cast<long long>(dataset.held_out.size()),
      100 * accuracy.against_centres, 100 * accuracy.against_class_means, training.samples_per_s,
      training.seconds, 100 * training.head_share);
  if (options.json.empty()) return absl::OkStatus();
  std::ofstream file(options.json);
  file << absl::StrFormat(
      "{\"classes\": %d, \"test_pictures\": %d, \"rank1_centres\": %.6f, \"rank1_class_means\": %.6f, "
      "\"steps\": %d, \"seconds\": %.3f, \"samples_per_s\": %.1f, \"head_share\": %.4f, \"loss\": %.6f}\n",
      dataset.characters.size(), dataset.held_out.size(), accuracy.against_centres,
      accuracy.against_class_means, training.steps, training.seconds, training.samples_per_s,
      training.head_share, training.loss);
  file.close();
  return file ? absl::OkStatus() : absl::UnknownError(absl::StrCat("cannot write ", options.json));
}

absl::Status TrainAndTest(const Options& options) {
  auto client = ccs::client::Client::Connect({.addresses = options.addresses});
  if (!client.ok()) return client.status();
  const auto dataset = LoadDataset(options);
  if (!dataset.ok()) return dataset.status();
  if (absl::Status fits = CheckFits(*dataset, (*client)->info()); !fits.ok()) return fits;
  Trainer trainer(options, *dataset, **client, stop_signal);
  if (absl::Status started = trainer.Start(); !started.ok()) return started;
  const auto training = trainer.Train();
  if (!training.ok()) return training.status();
  if (stop_signal != 0) return absl::CancelledError("stopped by a signal; --resume goes on from here");
  std::printf("testing on %s\n", HeldOutFont().name.c_str());
  std::fflush(stdout);
  const auto accuracy = trainer.Test();
  if (!accuracy.ok()) return accuracy.status();
  return Report(options, *dataset, *training, *accuracy);
}

}  // namespace
}  // namespace glyphs

int main(int argc, char** argv) {
  glyphs::Options options;
  if (const auto exit_code = glyphs::ParseOptions(argc, argv, options)) return *exit_code;
  glyphs::CatchSignals();
  const absl::Status status = options.describe ? glyphs::Describe(options) : glyphs::TrainAndTest(options);
  if (!status.ok()) std::fprintf(stderr, "glyphs: %s\n", status.ToString().c_str());
  if (glyphs::stop_signal != 0) return 128 + glyphs::stop_signal;
  return status.ok() ? 0 : 1;
}
