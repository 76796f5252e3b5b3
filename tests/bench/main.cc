// ccs-bench: benchmarks of the real binaries. Each verifies its answer before it reports.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/bench/step_bench.h"

namespace {

int Report(const ccs::bench::StepBenchOptions& options, const ccs::bench::StepBenchResult& result,
           bool json) {
  if (json) {
    const nlohmann::ordered_json line = {{"step_s", result.step_s},
                                         {"samples_per_s", result.samples_per_s},
                                         {"gradient_latency_s", result.gradient_latency_s},
                                         {"peak_rss_mib", result.peak_rss_mib},
                                         {"state_bytes", result.state_bytes},
                                         {"loss", result.loss},
                                         {"classes", options.classes},
                                         {"dim", options.dim},
                                         {"batch", options.batch},
                                         {"sample_rate", options.sample_rate},
                                         {"shards", options.shards},
                                         {"threads", options.threads},
                                         {"steps", options.steps},
                                         {"precision", options.precision},
                                         {"data", options.data}};
    std::printf("%s\n", line.dump().c_str());
    return 0;
  }
  std::printf("step              %.4f s  (median of %d; %d shards x %d threads)\n", result.step_s,
              options.steps, options.shards, options.threads);
  std::printf("samples           %.1f /s\n", result.samples_per_s);
  std::printf("gradient latency  %.4f s\n", result.gradient_latency_s);
  std::printf("peak memory       %lld MiB, the largest shard\n", static_cast<long long>(result.peak_rss_mib));
  std::printf("state             %lld bytes, the largest shard\n",
              static_cast<long long>(result.state_bytes));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Benchmarks of the class centre service.");
  app.require_subcommand(1);
  ccs::bench::StepBenchOptions options;
  options.server_binary =
      (std::filesystem::canonical("/proc/self/exe").parent_path() / "ccs-server").string();
  std::string format = "text";
  CLI::App* step = app.add_subcommand("step", "Seconds a training step of a cluster on this machine");
  step->add_option("--classes", options.classes, "classes in all")->capture_default_str();
  step->add_option("--dim", options.dim, "embedding width")->capture_default_str();
  step->add_option("--batch", options.batch, "rows a step, all trainers together")->capture_default_str();
  step->add_option("--sample_rate", options.sample_rate, "share of the classes in a step")
      ->capture_default_str();
  step->add_option("--shards", options.shards, "shard processes, and as many trainers")
      ->capture_default_str();
  step->add_option("--threads", options.threads, "threads a shard")->capture_default_str();
  step->add_option("--steps", options.steps, "measured steps, after one that is not")->capture_default_str();
  step->add_option("--precision", options.precision, "of the matrix products")
      ->check(CLI::IsMember({"fp32", "tf32", "bf16", "fastest"}))
      ->capture_default_str();
  step->add_option("--data", options.data, "random, or features around their own centres")
      ->check(CLI::IsMember({"random", "trained"}))
      ->capture_default_str();
  step->add_option("--seed", options.seed, "of the data")->capture_default_str();
  step->add_option("--server", options.server_binary, "the ccs-server to measure")->capture_default_str();
  step->add_option("--format", format, "text, or json for one JSON line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  const absl::StatusOr<ccs::bench::StepBenchResult> result = ccs::bench::RunStepBench(options);
  if (!result.ok()) {
    std::fprintf(stderr, "ccs-bench: %s\n", result.status().ToString().c_str());
    return 1;
  }
  return Report(options, *result, format == "json");
}
