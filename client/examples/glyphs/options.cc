#include "client/examples/glyphs/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

#include "absl/strings/str_format.h"

namespace glyphs {
namespace {

void AddFlags(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--addresses", options.addresses, "host:port of one or more shards")->delimiter(',');
  app.add_option("--epochs", options.epochs, "Passes over the pictures")->check(CLI::Range(1, 10000));
  app.add_option("--batch", options.batch, "Pictures a step")->check(CLI::Range(2, 1 << 16));
  app.add_option("--seed", options.seed, "Of initial weights, order and augmentation");
  app.add_option("--threads", options.threads, "Cores for the backbone, 0 for all")
      ->check(CLI::Range(0, 1024));
  app.add_option("--classes", options.classes, "Only the first so many characters, 0 for all")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--font_dir", options.font_dir, "Where to look for the fonts, subfolders included");

  const std::string training = "Training";
  app.add_option("--margin", options.margin, "CosFace margin, reached after one epoch")->group(training);
  app.add_option("--lr", options.lr, "Peak learning rate of the backbone")->group(training);
  app.add_option("--centre_lr", options.centre_lr, "Peak learning rate of the class centres")
      ->group(training);
  app.add_flag("--freeze_centres", options.freeze_centres,
               "Control: centres stay as they were written at first")
      ->group(training);
  app.add_flag("--shuffle_labels", options.shuffle_labels,
               "Control: labels at random; accuracy must be chance")
      ->group(training);

  const std::string files = "Files";
  CLI::Option* output =
      app.add_option("--output", options.output, "Directory of backbone files, empty for none")->group(files);
  app.add_option("--checkpoint_every", options.checkpoint_every,
                 "With --output: steps between checkpoints of backbone and cluster, 0 for the last step only")
      ->check(CLI::Range(0, 1 << 30))
      ->group(files);
  app.add_flag("--resume", options.resume,
               "Go on from the cluster's step with the backbone file of that step")
      ->needs(output)
      ->group(files);
  app.add_option("--json", options.json, "Write the results to this file as one line of JSON")->group(files);
  app.add_flag("--describe", options.describe, "Print the model spec that the cluster needs, then exit")
      ->group(files);
}

}  // namespace

std::optional<int> ParseOptions(int argc, const char* const* argv, Options& options) {
  CLI::App app(
      "Trains a recogniser of CJK ideographs: pictures rendered from font packages, a small convolutional\n"
      "network here, the class centres on a running ccs cluster. Then tests it on a font never seen in "
      "training.",
      "glyphs");
  AddFlags(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.threads == 0)
    options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::nullopt;
}

std::string RunDescription(const Options& options) {
  return absl::StrFormat(
      "--epochs=%d --batch=%d --seed=%d --classes=%d --margin=%g --lr=%g --centre_lr=%g --freeze_centres=%d "
      "--shuffle_labels=%d",
      options.epochs, options.batch, options.seed, options.classes, options.margin, options.lr,
      options.centre_lr, options.freeze_centres, options.shuffle_labels);
}

std::string ModelSpecText(const Options& options, int64_t num_classes, int dim) {
  return absl::StrFormat(
      "num_classes: %d\n"
      "dim: %d\n"
      "head { cosface { margin: %g } scale: 32 }\n"
      "optimizer { momentum: 0.9 weight_decay: 0.0005 }\n"
      "seed: %d\n"
      "max_batch: %d\n",
      num_classes, dim, options.margin, options.seed, options.batch);
}

}  // namespace glyphs
