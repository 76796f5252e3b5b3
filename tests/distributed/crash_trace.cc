#include "tests/distributed/crash_trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ccs::testing {

std::string CrashModel() {
  return absl::StrCat("num_classes: ", kCrashClasses, " dim: ", kCrashDim,
                      " head { arcface {} scale: 16 } sample_rate: 0.5 seed: 7");
}

Trace ReadTrace(const std::filesystem::path& path) {
  Trace trace;
  std::ifstream file(path, std::ios::binary);
  TraceRecord record;
  while (file.read(reinterpret_cast<char*>(&record), sizeof(record))) trace.push_back(record);
  return trace;
}

int64_t TraceLength(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(bytes / sizeof(TraceRecord));
}

absl::Status AppendTrace(const std::filesystem::path& path, size_t records, const TraceRecord& record) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const auto place = static_cast<off_t>(records * sizeof(record));
  const bool written = file >= 0 && pwrite(file, &record, sizeof(record), place) == ssize_t{sizeof(record)} &&
                       fsync(file) == 0;
  const int error = errno;
  if (file >= 0) close(file);
  return written ? absl::OkStatus()
                 : absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path.string()));
}

Rows NextRows(const Trace& trace, int trainer_rank) {
  Rows rows =
      RandomRows(kCrashClasses, kCrashDim, kCrashRows, static_cast<int64_t>(trace.size()) + 1, trainer_rank);
  if (trace.empty()) return rows;
  for (size_t i = 0; i < rows.features.size(); ++i) rows.features[i] += 10 * trace.back().gradient[i];
  return rows;
}

}  // namespace ccs::testing
