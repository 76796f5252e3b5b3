#include "server/reshard.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/engine/layout.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/part_folder.h"
#include "server/storage/whole_checkpoints.h"

namespace ccs {
namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr absl::Duration kProgressPeriod = absl::Seconds(1);
constexpr int kMostShards = 1 << 16;
enum ExitCode { kDone = 0, kBadUsage = 1, kFailed = 3 };  // as ccsctl's

using Reader = std::unique_ptr<CheckpointReader>;

absl::StatusOr<Reader> OpenLatest(WholeCheckpoints& checkpoints, const std::vector<CheckpointId>& ids,
                                  std::ostream& progress) {
  absl::Status newest;
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    progress << "verifying checkpoint " << id->ToString() << std::endl;
    absl::StatusOr<Reader> reader = checkpoints.Open(*id);
    if (reader.ok()) return reader;
    newest.Update(absl::Status(
        reader.status().code(),
        absl::StrCat("no checkpoint is whole; ", id->ToString(), " is ", reader.status().message())));
    progress << "checkpoint " << id->ToString() << " is not whole: " << reader.status().message()
             << std::endl;
  }
  return newest;
}

absl::StatusOr<Reader> OpenSource(const ReshardOptions& options, std::ostream& progress) {
  WholeCheckpoints checkpoints({.checkpoint_dir = options.from});
  const absl::StatusOr<std::vector<CheckpointId>> ids = checkpoints.Ids();
  if (!ids.ok()) return ids.status();
  const std::string below = absl::StrCat(" below ", options.from.string());
  if (ids->empty()) return absl::NotFoundError(absl::StrCat("there are no checkpoints", below));
  if (options.checkpoint == "latest") return OpenLatest(checkpoints, *ids, progress);
  const auto id = std::find_if(ids->begin(), ids->end(), [&](const CheckpointId& candidate) {
    return candidate.ToString() == options.checkpoint;
  });
  if (id == ids->end()) {
    const auto print = [](std::string* out, const CheckpointId& there) { out->append(there.ToString()); };
    return absl::NotFoundError(absl::StrCat("there is no checkpoint ", options.checkpoint, below,
                                            "; there are ", absl::StrJoin(*ids, ", ", print)));
  }
  progress << "verifying checkpoint " << id->ToString() << std::endl;
  return checkpoints.Open(*id);
}

// A copy in the making.
class Copy {
 public:
  Copy(CheckpointReader& source, const ReshardOptions& options, std::ostream& progress)
      : source_(source), options_(options), progress_(progress) {}

  absl::Status Write() {
    absl::StatusOr<std::vector<int>> missing = MissingParts();
    if (!missing.ok()) return missing.status();
    for (const int rank : *missing) {
      if (absl::Status status = WritePart(rank); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  const CheckpointHeader& original() const { return source_.header(); }
  absl::StatusOr<std::vector<int>> MissingParts();
  absl::Status WritePart(int rank);
  absl::Status CopyRows(const CheckpointHeader& part, CheckpointWriter& writer);

  CheckpointReader& source_;
  const ReshardOptions& options_;
  std::ostream& progress_;
  absl::Time last_progress_ = absl::Now();
};

absl::StatusOr<std::vector<int>> Copy::MissingParts() {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.num_shards; ++rank) {
    PartFolder folder(options_.to, rank, options_.num_shards);
    const std::filesystem::path path = folder.PathOf(original().id);
    if (std::error_code error; !std::filesystem::exists(path, error)) {
      missing.push_back(rank);
      continue;
    }
    const absl::StatusOr<Manifest> manifest = folder.Verify(original().id, PartFolder::Depth::kDigests);
    if (!manifest.ok()) return manifest.status();
    progress_ << path.string() << " is there already" << std::endl;
  }
  if (!missing.empty()) return missing;
  return absl::AlreadyExistsError(absl::StrCat("checkpoint ", original().id.ToString(), " for ",
                                               options_.num_shards, " shards is there already, below ",
                                               options_.to.string(), "; nothing is overwritten"));
}

absl::Status Copy::WritePart(int rank) {
  absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
      OpenCheckpointStore(options_.to, rank, options_.num_shards);
  if (!store.ok()) return store.status();
  const ClassRange range = ClassRangeOf(original().num_local, options_.num_shards, rank);
  CheckpointHeader header = original();
  header.rank = rank;
  header.num_shards = options_.num_shards;
  header.class_start = range.start;
  header.num_local = range.count;
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> writer = (*store)->Create(header);
  if (!writer.ok()) return writer.status();
  if (absl::Status status = CopyRows(header, **writer); !status.ok()) return status;
  const auto records = source_.ReadRecords();
  if (!records.ok()) return records.status();
  for (const auto& [name, value] : *records) {
    if (absl::Status status = (*writer)->AddRecord(name, value); !status.ok()) return status;
  }
  const absl::StatusOr<CheckpointSize> size = (*writer)->Commit();
  if (!size.ok()) return size.status();
  progress_ << "part " << rank + 1 << " of " << options_.num_shards << ": classes [" << range.start << ", "
            << range.start + range.count << "), " << size->bytes << " bytes" << std::endl;
  return absl::OkStatus();
}

absl::Status Copy::CopyRows(const CheckpointHeader& part, CheckpointWriter& writer) {
  const auto row_bytes = static_cast<int64_t>(part.dim * sizeof(float));
  const int64_t block = std::max<int64_t>(1, kBlockBytes / row_bytes);
  std::vector<float> weight(std::min(block, part.num_local) * part.dim);
  std::vector<float> momentum(weight.size());
  const int64_t end = part.class_start + part.num_local;
  for (int64_t first = part.class_start; first < end; first += block) {
    const int64_t rows = std::min(block, end - first);
    absl::Status status = source_.ReadRows(first, rows, weight.data(), momentum.data());
    if (status.ok()) status = writer.AddRows(first, rows, weight.data(), momentum.data());
    if (!status.ok()) return status;
    if (absl::Now() - last_progress_ < kProgressPeriod) continue;
    last_progress_ = absl::Now();
    progress_ << "class " << first + rows << " of " << original().num_local << ", "
              << 100 * (first + rows) / original().num_local << " %" << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Reshard(const ReshardOptions& options, std::ostream& progress) {
  absl::StatusOr<Reader> source = OpenSource(options, progress);
  if (!source.ok()) return source.status();
  const CheckpointHeader& header = (*source)->header();
  progress << "checkpoint " << header.id.ToString() << " of " << header.num_shards << " shards, "
           << header.num_local << " classes of width " << header.dim << ": rewriting it for "
           << options.num_shards << " shards below " << options.to.string() << std::endl;
  return Copy(**source, options, progress).Write();
}

int RunReshard(int argc, const char* const* argv) {
  ReshardOptions options;
  CLI::App app("Rewrites a checkpoint for another number of shards; no cluster need run.", "reshard");
  app.add_option("--from", options.from,
                 "A --checkpoint_dir that has the folders of all shards that wrote it")
      ->required();
  app.add_option("--to", options.to, "The --checkpoint_dir to write to; may be the same")->required();
  app.add_option("--shards", options.num_shards, "Shards that shall open it")
      ->required()
      ->check(CLI::Range(1, kMostShards));
  app.add_option("--checkpoint", options.checkpoint, "An id, or the latest that is whole")
      ->capture_default_str();
  app.footer(
      "The copy has the id, the rows and the ledger of the original, which is only read. Nothing is "
      "overwritten;\nafter an interruption the same command goes on. Exit codes: 0 done; 1 wrong usage; 3 "
      "not "
      "done.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kBadUsage;
  }
  spdlog::set_default_logger(spdlog::stderr_color_st("reshard"));
  spdlog::set_pattern("%v");
  const absl::Status status = Reshard(options, std::cerr);
  if (status.ok()) return kDone;
  std::cerr << "reshard: " << absl::StatusCodeToString(status.code()) << ": " << status.message()
            << std::endl;
  return kFailed;
}

}  // namespace ccs
