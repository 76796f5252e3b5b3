#include "tests/bench/log_bench.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/storage/step_log.h"

namespace ccs::bench {
namespace {

namespace fs = std::filesystem;

// A new folder, removed at the end.
class Folder {
 public:
  explicit Folder(const std::string& parent) : path_(parent + "/ccs-bench-log-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }  // empty if it could not be made

 private:
  std::string path_;
};

// Random bytes, as good as features for a disk; the index makes each record another one.
class Records {
 public:
  explicit Records(size_t bytes) : record_{.step = 0, .payload = std::string(bytes, '\0')} {
    std::mt19937_64 random(1);
    for (char& byte : record_.payload) byte = static_cast<char>(random());
  }
  const LogRecord& Get(int64_t index) {
    record_.step = index;
    std::memcpy(record_.payload.data(), &index, std::min(sizeof(index), record_.payload.size()));
    return record_;
  }

 private:
  LogRecord record_;
};

int64_t DiskBytes(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;  // files may go while they are counted
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    struct stat status;
    if (stat(entry.path().c_str(), &status) == 0) bytes += int64_t{512} * status.st_blocks;
  }
  return bytes;
}

// Seconds that each call took.
absl::StatusOr<std::vector<double>> Time(const LogBenchOptions& options,
                                         const std::function<absl::Status(int64_t)>& append,
                                         const std::function<absl::Status(int64_t)>& afterwards) {
  std::vector<double> seconds;
  for (int64_t index = 1; index <= options.appends; ++index) {
    const absl::Time began = absl::Now();
    if (absl::Status status = append(index); !status.ok()) return status;
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - began));
    if (absl::Status status = afterwards(index); !status.ok()) return status;
    if (options.interval_s > 0) absl::SleepFor(absl::Seconds(options.interval_s));
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Of sorted values.
double Quantile(const std::vector<double>& values, double q) {
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

absl::Status TimePlainWrites(const LogBenchOptions& options, const Folder& folder, Records& records,
                             LogBenchResult& result) {
  const std::string path = folder.path() + "/plain";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const auto append = [&](int64_t index) {
    const std::string& bytes = records.Get(index).payload;
    if (write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
        fdatasync(file) == 0) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  };
  const absl::StatusOr<std::vector<double>> seconds =
      Time(options, append, [](int64_t /*index*/) { return absl::OkStatus(); });
  close(file);
  fs::remove(path);
  if (!seconds.ok()) return seconds.status();
  result.plain_mean_s = Mean(*seconds);
  result.plain_p50_s = Quantile(*seconds, 0.5);
  result.plain_p99_s = Quantile(*seconds, 0.99);
  return absl::OkStatus();
}

absl::Status Verify(StepLog& log, int64_t last, Records& records) {
  const absl::StatusOr<std::vector<LoggedLineage>> list = log.List();
  if (!list.ok()) return list.status();
  if (list->size() != 1 || list->front().last != last) return absl::DataLossError("records are missing");
  for (int64_t index = list->front().first; index <= last; ++index) {
    const absl::StatusOr<LogRecord> record = log.Read(1, index);
    if (!record.ok()) return record.status();
    const LogRecord& want = records.Get(index);
    if (record->step != want.step || record->payload != want.payload) {
      return absl::DataLossError(absl::StrCat("record ", index, " is another"));
    }
  }
  return absl::OkStatus();
}

absl::Status TimeLog(const LogBenchOptions& options, const Folder& folder, Records& records,
                     LogBenchResult& result) {
  absl::StatusOr<std::unique_ptr<StepLog>> log = OpenStepLog(folder.path(), 0, 1);
  if (!log.ok()) return log.status();
  if (absl::Status status = (*log)->Begin(1, 0, ""); !status.ok()) return status;
  const absl::StatusOr<std::vector<double>> seconds = Time(
      options, [&](int64_t index) { return (*log)->Append(1, index, records.Get(index)); },
      [&](int64_t index) -> absl::Status {
        result.peak_disk_bytes = std::max(result.peak_disk_bytes, DiskBytes(folder.path()));
        if (index % options.cut_every != 0) return absl::OkStatus();
        return (*log)->Cut(1, index - options.cut_every);
      });
  if (!seconds.ok()) return seconds.status();
  result.append_mean_s = Mean(*seconds);
  result.append_p50_s = Quantile(*seconds, 0.5);
  result.append_p99_s = Quantile(*seconds, 0.99);
  log->reset();
  log = OpenStepLog(folder.path(), 0, 1);
  return log.ok() ? Verify(**log, options.appends, records) : log.status();
}

}  // namespace

absl::StatusOr<LogBenchResult> RunLogBench(const LogBenchOptions& options) {
  if (options.shards < 1 || options.batch < options.shards || options.dim < 1 || options.appends < 1 ||
      options.cut_every < 1) {
    return absl::InvalidArgumentError(
        "--shards, --dim, --appends and --cut_every must be at least 1, --batch at least --shards");
  }
  const Folder folder(options.dir);
  if (folder.path().empty()) {
    return absl::InternalError(absl::StrCat("cannot make a folder in ", options.dir));
  }
  LogBenchResult result;
  result.record_bytes = static_cast<int64_t>(sizeof(float)) * (options.batch / options.shards) * options.dim;
  Records records(result.record_bytes);
  absl::Status status = TimePlainWrites(options, folder, records, result);
  if (status.ok()) status = TimeLog(options, folder, records, result);
  if (!status.ok()) return status;
  return result;
}

}  // namespace ccs::bench
