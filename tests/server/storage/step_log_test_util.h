// What the tests of the step log share: logs whose every record is known.
#ifndef CCS_TESTS_SERVER_STORAGE_STEP_LOG_TEST_UTIL_H_
#define CCS_TESTS_SERVER_STORAGE_STEP_LOG_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/storage/step_log.h"
#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {

// Collects what is logged.
class CapturedLog {
 public:
  CapturedLog() {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "captured", std::make_shared<spdlog::sinks::ostream_sink_st>(stream_, /*force_flush=*/true)));
  }
  ~CapturedLog() { spdlog::set_default_logger(previous_); }
  std::string text() const { return stream_.str(); }

 private:
  std::ostringstream stream_;
  const std::shared_ptr<spdlog::logger> previous_ = spdlog::default_logger();
};

inline std::filesystem::path LogDirectory(const std::filesystem::path& directory) {
  return ShardDirectory(directory) / "log";
}

inline std::unique_ptr<StepLog> OpenLog(const std::filesystem::path& directory) {
  auto log = OpenStepLog(directory, kRank, kNumShards);
  EXPECT_TRUE(log.ok()) << log.status();
  return log.ok() ? *std::move(log) : nullptr;
}

// Other bytes for every (lineage, index, attempt); does not compress.
inline LogRecord RecordOf(uint64_t lineage, int64_t index, size_t bytes = 40, int attempt = 0) {
  std::mt19937_64 random(lineage * 1'000'000 + index * 10 + attempt);
  LogRecord record = {.step = 100 * static_cast<int64_t>(lineage) + 2 * index, .payload = {}};
  while (record.payload.size() < bytes) {
    const uint64_t bits = random();
    record.payload.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  record.payload.resize(bytes);
  return record;
}

inline bool operator==(const LogRecord& a, const LogRecord& b) {
  return a.step == b.step && a.payload == b.payload;
}

// Records [first, last] of RecordOf().
inline void AppendRecords(StepLog& log, uint64_t lineage, int64_t first, int64_t last, size_t bytes = 40,
                          int attempt = 0) {
  for (int64_t index = first; index <= last; ++index) {
    const absl::Status status = log.Append(lineage, index, RecordOf(lineage, index, bytes, attempt));
    ASSERT_TRUE(status.ok()) << status;
  }
}

inline void ExpectRecords(StepLog& log, uint64_t lineage, int64_t first, int64_t last, size_t bytes = 40,
                          int attempt = 0) {
  for (int64_t index = first; index <= last; ++index) {
    const absl::StatusOr<LogRecord> record = log.Read(lineage, index);
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_TRUE(*record == RecordOf(lineage, index, bytes, attempt)) << index;
  }
}

// "LINEAGE(BEGIN at STEP): FIRST..LAST at STEP" each.
inline std::vector<std::string> Listed(StepLog& log) {
  std::vector<std::string> lines;
  const auto list = log.List();
  EXPECT_TRUE(list.ok()) << list.status();
  if (!list.ok()) return lines;
  for (const LoggedLineage& l : *list) {
    lines.push_back(absl::StrCat(l.lineage, "(", l.begin, " at ", l.begin_step, "): ", l.first, "..", l.last,
                                 " at ", l.last_step));
  }
  return lines;
}

// RocksDB may remove files meanwhile.
inline int64_t FolderBytes(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::error_code gone;
    const auto size = entry.file_size(gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

inline std::vector<std::filesystem::path> FilesWith(const std::filesystem::path& folder,
                                                    const std::string& extension) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == extension) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

inline std::string FileText(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// What is in the file from `offset` on becomes `text`.
inline void Overwrite(const std::filesystem::path& path, int64_t offset, const std::string& text) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace ccs

#endif  // CCS_TESTS_SERVER_STORAGE_STEP_LOG_TEST_UTIL_H_
