// ccs-server: one shard of a Class Centre Service, or `ccs-server reshard`.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/options.h"
#include "server/reshard.h"
#include "server/shard.h"

namespace {

void SetUpLog(const ccs::ServerOptions& options) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("ccs"));
  spdlog::set_pattern(absl::StrCat("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ rank ", options.rank, ": %v"));
  spdlog::set_level(spdlog::level::from_str(options.log_level));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "reshard") return ccs::RunReshard(argc - 1, argv + 1);
  const absl::StatusOr<ccs::CommandLine> command_line = ccs::ParseCommandLine(argc, argv);
  absl::Status status = command_line.status();
  if (status.ok() && !command_line->text.empty()) {
    std::fputs(command_line->text.c_str(), stdout);
    return ccs::kExitClean;
  }
  if (status.ok()) status = ccs::ValidateOptions(command_line->options);
  if (!status.ok()) {
    const std::string message(status.message());
    std::fprintf(stderr, "ccs-server: %s\nRun ccs-server --help for the flags.\n", message.c_str());
    return ccs::kExitBadOptions;
  }
  SetUpLog(command_line->options);
  return ccs::RunShard(command_line->options);
}
