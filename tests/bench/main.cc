// ccs-bench: benchmarks of the real binaries. Each verifies its answer before it reports.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/bench/log_bench.h"
#include "tests/bench/step_bench.h"

namespace {

int Report(const ccs::bench::StepBenchOptions& options, const ccs::bench::StepBenchResult& result,
           bool json) {
  if (json) {
    const nlohmann::ordered_json line = {
        {"step_s", result.step_s},
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
        {"data", options.data},
        {"mean_step_s", result.mean_step_s},
        {"log_wait_s", result.durability.log_wait_s},
        {"checkpoint_stall_s", result.durability.stall_s},
        {"checkpoints", result.durability.checkpoints},
        {"checkpoint_s", result.durability.checkpoint_s},
        {"checkpoint_bytes", result.durability.checkpoint_bytes},
        {"checkpoint_written_bytes", result.durability.written_bytes},
        {"checkpoint_every", options.checkpoint_every},
        {"checkpoint_staging_bytes", options.checkpoint_staging_bytes},
        {"step_log", options.checkpoint_dir.empty() ? "" : options.step_log}};
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
  if (options.checkpoint_dir.empty()) return 0;
  const ccs::bench::DurabilityCost& cost = result.durability;
  std::printf("mean step         %.4f s, of which the step log %.5f s\n", result.mean_step_s,
              cost.log_wait_s);
  std::printf(
      "checkpoints       %lld, each %.2f s in the background; training waited %.3f s for them in all\n",
      static_cast<long long>(cost.checkpoints), cost.checkpoint_s, cost.stall_s);
  std::printf("checkpoint bytes  %lld the last, %lld written by all\n",
              static_cast<long long>(cost.checkpoint_bytes), static_cast<long long>(cost.written_bytes));
  return 0;
}

int Report(const ccs::bench::LogBenchOptions& options, const ccs::bench::LogBenchResult& result, bool json) {
  const double mb_per_s = static_cast<double>(result.record_bytes) / result.append_mean_s / 1e6;
  if (json) {
    const nlohmann::ordered_json line = {{"append_mean_s", result.append_mean_s},
                                         {"append_p50_s", result.append_p50_s},
                                         {"append_p99_s", result.append_p99_s},
                                         {"mb_per_s", mb_per_s},
                                         {"plain_mean_s", result.plain_mean_s},
                                         {"plain_p50_s", result.plain_p50_s},
                                         {"plain_p99_s", result.plain_p99_s},
                                         {"peak_disk_bytes", result.peak_disk_bytes},
                                         {"record_bytes", result.record_bytes},
                                         {"batch", options.batch},
                                         {"dim", options.dim},
                                         {"shards", options.shards},
                                         {"appends", options.appends},
                                         {"cut_every", options.cut_every},
                                         {"interval_s", options.interval_s}};
    std::printf("%s\n", line.dump().c_str());
    return 0;
  }
  std::printf("append            %.5f s mean, %.5f median, %.5f p99  (%lld bytes, synced; %.1f MB/s)\n",
              result.append_mean_s, result.append_p50_s, result.append_p99_s,
              static_cast<long long>(result.record_bytes), mb_per_s);
  std::printf("write, fdatasync  %.5f s mean, %.5f median, %.5f p99\n", result.plain_mean_s,
              result.plain_p50_s, result.plain_p99_s);
  std::printf("disk              %lld MiB at most, cut every %d of %d\n",
              static_cast<long long>(result.peak_disk_bytes >> 20), options.cut_every, options.appends);
  return 0;
}

template <typename Options, typename Result>
int Finish(const Options& options, const absl::StatusOr<Result>& result, bool json) {
  if (result.ok()) return Report(options, *result, json);
  std::fprintf(stderr, "ccs-bench: %s\n", result.status().ToString().c_str());
  return 1;
}

void AddFormat(CLI::App& command, std::string& format) {
  command.add_option("--format", format, "text, or json for one JSON line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

CLI::App* AddLog(CLI::App& app, ccs::bench::LogBenchOptions& options) {
  CLI::App* log = app.add_subcommand("log", "Seconds a synced append to a shard's step log on this disk");
  log->add_option("--dir", options.dir, "where to write")->capture_default_str();
  log->add_option("--batch", options.batch, "rows a step, all trainers together")->capture_default_str();
  log->add_option("--dim", options.dim, "embedding width")->capture_default_str();
  log->add_option("--shards", options.shards, "shards that a step's rows are spread over")
      ->capture_default_str();
  log->add_option("--appends", options.appends, "measured appends")->capture_default_str();
  log->add_option("--cut_every", options.cut_every, "appends between cuts, and left by a cut")
      ->capture_default_str();
  log->add_option("--interval_s", options.interval_s, "seconds between appends")->capture_default_str();
  return log;
}

CLI::App* AddStep(CLI::App& app, ccs::bench::StepBenchOptions& options) {
  options.server_binary =
      (std::filesystem::canonical("/proc/self/exe").parent_path() / "ccs-server").string();
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
  step->add_option("--checkpoint_dir", options.checkpoint_dir,
                   "a folder on the disk for checkpoints and the step log (default: neither)");
  step->add_option("--step_log", options.step_log, "sync, or off: checkpoints only")
      ->check(CLI::IsMember({"sync", "off"}))
      ->capture_default_str();
  step->add_option("--checkpoint_every", options.checkpoint_every, "steps between checkpoints; 0: none")
      ->capture_default_str();
  step->add_option("--checkpoint_staging_bytes", options.checkpoint_staging_bytes, "as ccs-server's flag")
      ->capture_default_str();
  step->add_option("--seed", options.seed, "of the data")->capture_default_str();
  step->add_option("--server", options.server_binary, "the ccs-server to measure")->capture_default_str();
  return step;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Benchmarks of the class centre service.");
  app.require_subcommand(1);
  std::string format = "text";
  ccs::bench::StepBenchOptions step_options;
  ccs::bench::LogBenchOptions log_options;
  CLI::App* step = AddStep(app, step_options);
  CLI::App* log = AddLog(app, log_options);
  for (CLI::App* command : {step, log}) AddFormat(*command, format);
  CLI11_PARSE(app, argc, argv);
  const bool json = format == "json";
  if (step->parsed()) return Finish(step_options, ccs::bench::RunStepBench(step_options), json);
  return Finish(log_options, ccs::bench::RunLogBench(log_options), json);
}
