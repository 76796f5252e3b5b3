// A small log with one bit of one byte flipped, at every CCS_FLIP_STRIDE-th byte of every file: it is
// refused, or what it lists is what was logged, or the beginning of that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "server/storage/step_log_database.h"
#include "tests/server/storage/step_log_test_util.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

// What was logged last under each number.
using History = std::map<std::pair<uint64_t, int64_t>, LogRecord>;

struct Outcomes {
  int refused = 0;
  int whole = 0;
  int shorter = 0;
};

// RocksDB waits for a second after a compaction that failed.
class NoSleepEnv : public rocksdb::EnvWrapper {
 public:
  NoSleepEnv() : EnvWrapper(rocksdb::Env::Default()) {}
  const char* Name() const override { return "NoSleepEnv"; }
  void SleepForMicroseconds(int /*micros*/) override {}
};

class StepLogFlipTest : public ::testing::Test {
 protected:
  void Append(uint64_t lineage, int64_t first, int64_t last, int attempt) {
    AppendRecords(*log_, lineage, first, last, /*bytes=*/20, attempt);
    for (int64_t index = first; index <= last; ++index) {
      history_[{lineage, index}] = RecordOf(lineage, index, 20, attempt);
    }
  }

  // Tables, a manifest with several edits, and a write-ahead log; each with records that were replaced, which
  // must not come back.
  void SetUp() override {
    log_ = OpenLog(directory_.path());
    ASSERT_TRUE(log_->Begin(1, 0, "one").ok());
    Append(1, 1, 4, 0);
    ASSERT_TRUE(log_->Truncate(1, 2).ok());
    Reopen();
    Append(1, 3, 4, 1);
    ASSERT_TRUE(log_->Cut(1, 1).ok());
    ASSERT_TRUE(log_->Begin(2, 0, "two").ok());
    Append(2, 1, 3, 0);
    Reopen();
    ASSERT_TRUE(log_->Truncate(2, 2).ok());
    Append(2, 3, 4, 1);
    log_.reset();
    for (const auto& entry : fs::directory_iterator(LogDirectory(directory_.path()))) {
      files_[entry.path().filename()] = FileText(entry.path());
    }
  }
  void Reopen() {
    log_.reset();
    log_ = OpenLog(directory_.path());
  }

  // The log with another text in one file.
  void WriteWith(const std::string& changed, const std::string& text) {
    const fs::path folder = LogDirectory(directory_.path());
    fs::remove_all(folder);
    fs::create_directory(folder);
    for (const auto& [name, original] : files_) {
      std::ofstream(folder / name, std::ios::binary) << (name == changed ? text : original);
    }
  }

  // False if a record is wrong.
  bool Check(Outcomes& outcomes) {
    const auto log = OpenStepLogIn(LogDirectory(directory_.path()), &env_);
    if (!log.ok()) {
      ++outcomes.refused;
      return true;
    }
    size_t read = 0;
    const auto list = (*log)->List();
    for (const LoggedLineage& lineage : *list) {
      for (int64_t index = lineage.first; index <= lineage.last; ++index) {
        const absl::StatusOr<LogRecord> record = (*log)->Read(lineage.lineage, index);
        if (absl::IsDataLoss(record.status())) break;
        const auto logged = history_.find({lineage.lineage, index});
        if (!record.ok() || logged == history_.end() || !(*record == logged->second)) return false;
        read += index >= (lineage.lineage == 1 ? 2 : 1);
      }
    }
    ++(read == history_.size() - 1 ? outcomes.whole : outcomes.shorter);
    return true;
  }

  NoSleepEnv env_;
  TemporaryDirectory directory_;
  std::unique_ptr<StepLog> log_;
  History history_;
  std::map<std::string, std::string> files_;
};

TEST_F(StepLogFlipTest, NoFlippedBitMakesAWrongRecord) {
  const CapturedLog logged;
  std::map<std::string, Outcomes> by_kind;
  for (const auto& [name, text] : files_) {
    // RocksDB writes these, and reads neither.
    const size_t stride = name.starts_with("OPTIONS") || name == "IDENTITY" ? 2003 : CCS_FLIP_STRIDE;
    std::string kind = name.substr(name.find('.') == std::string::npos ? 0 : name.find('.'));
    kind = kind.substr(0, kind.find('-'));
    for (size_t at = 0; at < text.size(); at += stride) {
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << at / stride % 8));
      WriteWith(name, flipped);
      EXPECT_TRUE(Check(by_kind[kind])) << name << ", byte " << at << " of " << text.size();
    }
  }
  WriteWith("", "");
  Outcomes untouched;
  EXPECT_TRUE(Check(untouched));
  EXPECT_EQ(untouched.whole, 1);
  EXPECT_GT(by_kind["CURRENT"].refused, 0);
  EXPECT_GT(by_kind["MANIFEST"].refused, 0);
  EXPECT_GT(by_kind[".sst"].refused, 0);
  EXPECT_GT(by_kind[".sst"].shorter, 0);
  EXPECT_GT(by_kind[".log"].refused, 0);
  EXPECT_GT(by_kind[".log"].shorter, 0);
}

}  // namespace
}  // namespace ccs
