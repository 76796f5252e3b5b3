// ccsctl: asks a cluster, and tells it, what an operator wants.
#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "client/ctl/checkpoint_name.h"
#include "client/ctl/class_ids.h"
#include "client/ctl/commands.h"
#include "client/ctl/npy.h"
#include "client/ctl/remote.h"
#include "client/ctl/server_binary.h"

namespace ccs::client {
namespace {

enum ExitCode { kOk = 0, kUsage = 1, kUnreachable = 2, kRefused = 3 };

constexpr char kFooter[] =
    "Exit codes: 0 done; 1 wrong usage, or a file that cannot be read; 2 no answer from the cluster in "
    "time;\n"
    "3 the cluster refused. Errors go to standard error.";

using Command = std::function<absl::Status(const Remote&)>;

// The command line: what CLI11 fills, and the subcommand that was chosen.
struct Arguments {
  ClientOptions client;
  double timeout_s = 60;
  std::string format;
  std::string ids;
  std::string query_file;
  std::string run_id;
  std::string checkpoint;
  int k = 5;
  Command command;
};

void AddFormat(CLI::App* command, Arguments* arguments, const std::string& text = "table") {
  command->add_option("--format", arguments->format, text + " is the default")
      ->check(CLI::IsMember({text, std::string("json")}));
}

Format FormatOf(const Arguments& arguments) {
  return arguments.format == "json" ? Format::kJson : Format::kText;
}

// Parsing errors become CLI11's, so that they are reported as wrong usage.
std::vector<int64_t> IdsOrThrow(const std::string& text) {
  const auto ids = ParseClassIds(text);
  if (!ids.ok()) throw CLI::ValidationError(std::string(ids.status().message()));
  return *ids;
}

ccs::v1::CheckpointId CheckpointOrThrow(const std::string& name) {
  const auto id = ParseCheckpointName(name);
  if (!id.ok()) throw CLI::ValidationError(std::string(id.status().message()));
  return *id;
}

Matrix QueriesOrThrow(const std::string& path) {
  auto queries = ReadNpy(path);
  if (!queries.ok()) throw CLI::ValidationError(std::string(queries.status().message()));
  return *std::move(queries);
}

void AddAdminCommands(CLI::App* app, Arguments* arguments) {
  CLI::App* status = app->add_subcommand("status", "State, position, run, loss and shards");
  AddFormat(status, arguments);
  status->callback([=] {
    arguments->command = [=](const Remote& r) { return ShowStatus(r, FormatOf(*arguments), std::cout); };
  });

  CLI::App* list = app->add_subcommand(
      "list", "Checkpoints that are whole on every shard, and the steps that a run can resume from");
  AddFormat(list, arguments);
  list->callback([=] {
    arguments->command = [=](const Remote& r) { return ListCheckpoints(r, FormatOf(*arguments), std::cout); };
  });

  CLI::App* checkpoint = app->add_subcommand("checkpoint", "Take a checkpoint now; prints its id and size");
  AddFormat(checkpoint, arguments);
  checkpoint->callback([=] {
    arguments->command = [=](const Remote& r) { return TakeCheckpoint(r, FormatOf(*arguments), std::cout); };
  });

  CLI::App* release = app->add_subcommand(
      "release", "Let a checkpoint that a trainer asked for go when newer ones follow, like any other");
  release->add_option("CHECKPOINT", arguments->checkpoint, "Its name, as list shows it")->required();
  release->callback([=] {
    arguments->command = [=, id = CheckpointOrThrow(arguments->checkpoint)](const Remote& r) {
      return ReleaseCheckpoint(r, id, std::cout);
    };
  });

  CLI::App* close = app->add_subcommand("close-run", "End a run for all its trainers");
  close->add_option("RUN_ID", arguments->run_id, "The run")->required();
  close->callback([=] {
    arguments->command = [=](const Remote& r) { return CloseRun(r, arguments->run_id, std::cout); };
  });
}

void AddCentreCommands(CLI::App* app, Arguments* arguments) {
  CLI::App* nearest = app->add_subcommand("nearest", "Class centres with the highest cosine, best first");
  CLI::Option_group* query = nearest->add_option_group("query", "What to look for");
  query->add_option("--class", arguments->ids, "The centres of these classes, e.g. 1,2,10-20");
  query->add_option("--query-file", arguments->query_file, "The rows of this float32 .npy file");
  query->require_option(1);
  nearest->add_option("--k", arguments->k, "How many to each query")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  AddFormat(nearest, arguments);
  nearest->callback([=] {
    if (!arguments->query_file.empty()) {
      arguments->command = [=, queries = QueriesOrThrow(arguments->query_file)](const Remote& r) {
        return NearestToQueries(r, queries, arguments->k, FormatOf(*arguments), std::cout);
      };
    } else {
      arguments->command = [=, ids = IdsOrThrow(arguments->ids)](const Remote& r) {
        return NearestToClasses(r, ids, arguments->k, FormatOf(*arguments), std::cout);
      };
    }
  });

  CLI::App* centres = app->add_subcommand("centres", "Class centres as numbers");
  centres->add_option("--ids", arguments->ids, "Class ids, e.g. 1,2,10-20")->required();
  AddFormat(centres, arguments, "csv");
  centres->callback([=] {
    arguments->command = [=, ids = IdsOrThrow(arguments->ids)](const Remote& r) {
      return PrintCentres(r, ids, FormatOf(*arguments), std::cout);
    };
  });
}

// For the help: as the first argument it never gets here, see Main.
void AddReshard(CLI::App* app) {
  CLI::App* reshard = app->add_subcommand(
      "reshard",
      "Rewrite a checkpoint on disk for another number of shards, without a cluster (ccs-server does)");
  reshard->allow_extras()->fallthrough(false);
  reshard->callback([] { throw CLI::ValidationError("reshard must be the first argument"); });
}

// All that follows is for the server's binary.
int Reshard(char** argv) {
  const absl::Status status = BecomeServer(argv);
  std::cerr << "ccsctl: " << absl::StatusCodeToString(status.code()) << ": " << status.message() << "\n";
  return kUsage;
}

int Main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "reshard") return Reshard(argv);
  Arguments arguments;
  CLI::App app("Talks to a cluster of ccs-server shards; any shard will do.", "ccsctl");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--address", arguments.client.addresses, "host:port of shards, several after commas")
      ->capture_default_str()
      ->delimiter(',');
  app.add_option("--timeout", arguments.timeout_s, "Seconds to wait for the cluster")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  AddAdminCommands(&app, &arguments);
  AddCentreCommands(&app, &arguments);
  AddReshard(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  arguments.client.timeout = absl::Seconds(arguments.timeout_s);

  const auto remote = Remote::Reach(arguments.client);
  const absl::Status status = remote.ok() ? arguments.command(*remote) : remote.status();
  if (status.ok()) return kOk;
  std::cerr << "ccsctl: " << absl::StatusCodeToString(status.code()) << ": " << status.message() << "\n";
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? kUnreachable : kRefused;
}

}  // namespace
}  // namespace ccs::client

int main(int argc, char** argv) { return ccs::client::Main(argc, argv); }
