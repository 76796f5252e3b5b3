// Must be survived by the step log: a process that is killed, a power failure, a last write that is torn or
// has holes. Must be refused or end a lineage, loudly: writes that fail, and damage anywhere else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "rocksdb/iostats_context.h"
#include "server/storage/step_log_database.h"
#include "server/storage/step_log_entry.h"
#include "tests/server/storage/faulty_file_system.h"
#include "tests/server/storage/step_log_test_util.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr size_t kLarge = size_t{100} << 10;  // several blocks of RocksDB's write-ahead log

class StepLogFaultTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void Open() { log_ = OpenLog(directory_.path()); }
  void Reopen() {
    log_.reset();
    Open();
  }
  fs::path folder() const { return LogDirectory(directory_.path()); }
  absl::Status OpenStatus() const { return OpenStepLog(directory_.path(), kRank, kNumShards).status(); }

  // Changes a byte in the middle of `text`, which must be in one of the files with this extension.
  void Damage(const std::string& extension, const std::string& text) {
    log_.reset();
    for (const fs::path& file : FilesWith(folder(), extension)) {
      const size_t at = FileText(file).find(text);
      if (at == std::string::npos) continue;
      Overwrite(file, static_cast<int64_t>(at + text.size() / 2),
                std::string(1, static_cast<char>(text[text.size() / 2] ^ 4)));
      return;
    }
    FAIL() << "nothing to damage";
  }
  // Some of the middle of RecordOf(1, index, kLarge), in one piece in a file.
  static std::string PieceOf(int64_t index) {
    return RecordOf(1, index, kLarge).payload.substr(kLarge / 2, 64);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<StepLog> log_;
};

// The indices that a new step_log_appender printed until it was killed, after `count` of them or more.
std::vector<int64_t> AppendAndKill(const fs::path& directory, int count) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execl(CCS_STEP_LOG_APPENDER, "step_log_appender", directory.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  FILE* printed = fdopen(ends[0], "r");
  std::vector<int64_t> indices;
  long index = 0;
  while (std::fscanf(printed, "%ld\n", &index) == 1) {
    indices.push_back(index);
    if (indices.size() == static_cast<size_t>(count)) kill(child, SIGKILL);
  }
  std::fclose(printed);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  return indices;
}

TEST_F(StepLogFaultTest, AKilledProcessLosesNothingThatWasPromised) {
  log_.reset();
  for (const int count : {1, 7, 33, 2, 900}) {
    const std::vector<int64_t> promised = AppendAndKill(directory_.path(), count);
    ASSERT_GE(promised.size(), static_cast<size_t>(count));
    Open();
    const auto list = log_->List();
    ASSERT_EQ(list->size(), 1);
    EXPECT_GE(list->front().last, promised.back());
    EXPECT_LE(list->front().last, promised.back() + 1);
    EXPECT_LE(list->front().first, std::max<int64_t>(1, promised.back() - 6));
    ExpectRecords(*log_, 1, list->front().first, list->front().last, 16 << 10);
    log_.reset();
  }
}

TEST_F(StepLogFaultTest, APowerFailureLosesNothingThatWasPromised) {
  const auto system = std::make_shared<FaultyFileSystem>();
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(system);
  const fs::path origin = directory_.path() / "origin";
  auto log = OpenStepLogIn(origin, env.get());
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->Begin(1, 0, "").ok());
  for (int64_t index = 1; index <= 30; ++index) {
    AppendRecords(**log, 1, index, index, size_t{1} << 20);
    if (index % 7 != 0) continue;
    const fs::path copy = directory_.path() / absl::StrCat("copy-", index);
    system->CopySynced(origin, copy);
    const auto after = OpenStepLogIn(copy, rocksdb::Env::Default());
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_THAT(Listed(**after), ElementsAre(absl::StrCat("1( at 0): 1..", index, " at ", 100 + 2 * index)));
    ExpectRecords(**after, 1, 1, index, size_t{1} << 20);
  }
}

struct Fault {
  Operation operation;
  std::string extension;
  rocksdb::IOStatus failure;
  absl::StatusCode code;
};

class StepLogFailureTest : public ::testing::TestWithParam<Fault> {};

TEST_P(StepLogFailureTest, AfterAFailedWriteAllFailUntilItIsListed) {
  const TemporaryDirectory directory;
  const auto system = std::make_shared<FaultyFileSystem>();
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(system);
  auto log = OpenStepLogIn(directory.path() / "log", env.get());
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->Begin(1, 0, "").ok());
  AppendRecords(**log, 1, 1, 3);
  const Fault& fault = GetParam();
  system->Fail(fault.operation, fault.extension, fault.failure);
  absl::Status first;
  int64_t index = 4;
  while (first.ok() && index < 100) {  // the write-ahead log fails at once, a flush after some
    first = (*log)->Append(1, index, RecordOf(1, index, size_t{1} << 20));
    if (first.ok()) ++index;
  }
  EXPECT_EQ(first.code(), fault.code) << first;
  system->Fail(fault.operation, fault.extension, rocksdb::IOStatus::OK());
  EXPECT_EQ((*log)->Append(1, index, RecordOf(1, index)), first);
  EXPECT_EQ((*log)->Begin(2, 0, ""), first);
  EXPECT_EQ((*log)->Truncate(1, 2), first);
  EXPECT_EQ((*log)->Cut(1, 2), first);
  ExpectRecords(**log, 1, 1, 3);

  // Nothing can be opened yet either.
  system->Fail(Operation::kWrite, "", rocksdb::IOStatus::NoSpace("full"));
  EXPECT_TRUE(absl::IsResourceExhausted((*log)->List().status())) << (*log)->List().status();
  EXPECT_EQ((*log)->Append(1, index, RecordOf(1, index)), first);
  EXPECT_FALSE((*log)->Read(1, 1).ok());

  system->Fail(Operation::kWrite, "", rocksdb::IOStatus::OK());
  ASSERT_TRUE((*log)->List().ok()) << (*log)->List().status();
  const int64_t last = (*log)->List()->front().last;
  EXPECT_GE(last, index - 1);
  EXPECT_LE(last, index);  // nobody knows
  ExpectRecords(**log, 1, 1, 3);
  ExpectRecords(**log, 1, 4, last, size_t{1} << 20);
  AppendRecords(**log, 1, last + 1, last + 2);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, StepLogFailureTest,
    ::testing::Values(
        Fault{Operation::kWrite, ".log", rocksdb::IOStatus::NoSpace("full"),
              absl::StatusCode::kResourceExhausted},
        Fault{Operation::kWrite, ".log", rocksdb::IOStatus::IOError("broken"), absl::StatusCode::kInternal},
        Fault{Operation::kSync, ".log", rocksdb::IOStatus::IOError("broken"), absl::StatusCode::kInternal},
        Fault{Operation::kWrite, ".sst", rocksdb::IOStatus::NoSpace("full"),
              absl::StatusCode::kResourceExhausted},
        Fault{Operation::kSync, ".sst", rocksdb::IOStatus::IOError("broken"), absl::StatusCode::kInternal}),
    [](const auto& test) {
      return absl::StrCat(test.param.operation == Operation::kWrite ? "Write" : "Sync", test.index);
    });

TEST_F(StepLogFaultTest, ATornLastWriteIsDroppedAndNothingElse) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 1, kLarge);
  log_.reset();
  const auto before = fs::file_size(FilesWith(folder(), ".log").back());
  fs::rename(folder(), directory_.path() / "one");
  Open();
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 2, kLarge);
  log_.reset();
  fs::rename(folder(), directory_.path() / "two");
  for (auto size = before; size < before + kLarge; size += 7919) {
    fs::copy(directory_.path() / "two", folder());
    fs::resize_file(FilesWith(folder(), ".log").back(), size);
    Open();
    EXPECT_THAT(Listed(*log_), ElementsAre("1( at 0): 1..1 at 102")) << size;
    ExpectRecords(*log_, 1, 1, 1, kLarge);
    AppendRecords(*log_, 1, 2, 3);
    Reopen();
    ExpectRecords(*log_, 1, 2, 3);
    log_.reset();
    fs::remove_all(folder());
  }
}

// A power failure may have kept later pages of the write that it interrupted, and not earlier ones.
TEST_F(StepLogFaultTest, ALastWriteWithHolesIsDroppedAndNothingElse) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 3, kLarge);
  log_.reset();
  const fs::path file = FilesWith(folder(), ".log").back();
  const auto hole = static_cast<int64_t>(FileText(file).find(PieceOf(3)));
  Overwrite(file, hole / 4096 * 4096, std::string(40960, '\0'));
  Open();
  EXPECT_THAT(Listed(*log_), ElementsAre("1( at 0): 1..2 at 104"));
  AppendRecords(*log_, 1, 3, 4);
  Reopen();
  ExpectRecords(*log_, 1, 1, 2, kLarge);
  ExpectRecords(*log_, 1, 3, 4);
}

TEST_F(StepLogFaultTest, ADamagedWriteBeforeOthersMakesTheLogRefusedAndLeftAlone) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 5, kLarge);
  Damage(".log", PieceOf(3));
  const int64_t bytes = FolderBytes(folder());
  for (int open = 0; open < 2; ++open) {
    EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(OpenStatus().message()), HasSubstr("write 5 is damaged"));
  }
  EXPECT_EQ(FolderBytes(folder()), bytes);
}

// They share a block of the write-ahead log, which RocksDB gives up as a whole.
TEST_F(StepLogFaultTest, ADamagedSmallWriteBeforeOthersMakesTheLogRefused) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 5);
  Damage(".log", RecordOf(1, 3).payload);
  EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kDataLoss);
}

// RocksDB forgets a flush whose record in its manifest looks torn; the writes in it are gone, later ones not.
TEST_F(StepLogFaultTest, MissingWritesMakeTheLogRefused) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  log_.reset();
  {
    auto database = OpenLogDatabase(folder(), rocksdb::Env::Default());
    ASSERT_TRUE(database.ok());
    ++database->written;
    LogWrite later;
    ASSERT_TRUE(later.Commit(*database).ok());
  }
  for (int open = 0; open < 2; ++open) EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kDataLoss);
}

TEST_F(StepLogFaultTest, ADamagedPayloadEndsItsLineageAndItGoesOnAfterTruncation) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 5, kLarge);
  Reopen();  // into a table
  Damage(".sst", PieceOf(3));
  Open();
  ExpectRecords(*log_, 1, 1, 2, kLarge);
  ExpectRecords(*log_, 1, 4, 5, kLarge);
  {
    CapturedLog logged;
    EXPECT_EQ(log_->Read(1, 3).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(logged.text(), HasSubstr("lineage 1 ends before record 3"));
  }
  EXPECT_THAT(Listed(*log_), ElementsAre("1( at 0): 1..2 at 104"));
  EXPECT_EQ(log_->Append(1, 3, RecordOf(1, 3)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(log_->Read(1, 4).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(log_->Truncate(1, 2).ok());
  AppendRecords(*log_, 1, 3, 50, size_t{1} << 20);  // flushes
  Reopen();
  ExpectRecords(*log_, 1, 1, 2, kLarge);
  ExpectRecords(*log_, 1, 3, 50, size_t{1} << 20);
}

TEST_F(StepLogFaultTest, ADamagedOrMissingEntryEndsItsLineage) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  ASSERT_TRUE(log_->Begin(2, 0, "").ok());
  AppendRecords(*log_, 1, 1, 3);
  AppendRecords(*log_, 2, 1, 3);
  log_.reset();
  {
    const auto database = OpenLogDatabase(folder(), rocksdb::Env::Default());
    ASSERT_TRUE(database.ok());
    database->db->Put({}, database->index.get(), LogRecordKey(1, 2), "not an entry");
    database->db->Delete({}, database->index.get(), LogRecordKey(2, 1));
  }
  CapturedLog logged;
  Open();
  EXPECT_THAT(Listed(*log_), ElementsAre("1( at 0): 1..1 at 102", "2( at 0): 1..0 at 0"));
  EXPECT_THAT(logged.text(), HasSubstr("lineage 1 ends before record 2, which is damaged"));
  EXPECT_THAT(logged.text(), HasSubstr("lineage 2 ends before record 1, which is missing"));
  EXPECT_EQ(log_->Begin(2, 0, "").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StepLogFaultTest, AMissingFileIsNoticed) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 3);
  Reopen();
  log_.reset();
  std::vector<fs::path> files = FilesWith(folder(), ".sst");
  EXPECT_FALSE(files.empty());
  files.push_back(folder() / "CURRENT");
  for (const fs::path& file : files) {
    fs::rename(file, directory_.path() / "away");
    const absl::Status status = OpenStatus();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    fs::rename(directory_.path() / "away", file);
  }
  Open();
  ExpectRecords(*log_, 1, 1, 3);
}

TEST_F(StepLogFaultTest, AnUnknownFormatVersionIsRefusedByItsNumber) {
  log_.reset();
  {
    const auto database = OpenLogDatabase(folder(), rocksdb::Env::Default());
    ASSERT_TRUE(database.ok());
    database->db->Put({}, database->index.get(), kLogVersionKey, EncodeLogNumber(kLogVersionKey, 2));
  }
  EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(OpenStatus().message()), HasSubstr("format version 2"));
}

TEST_F(StepLogFaultTest, OpeningReadsNoPayloads) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 40, size_t{1} << 20);
  Reopen();  // replays the write-ahead log
  const uint64_t before = rocksdb::get_iostats_context()->bytes_read;
  Reopen();
  EXPECT_LT(rocksdb::get_iostats_context()->bytes_read - before, uint64_t{256} << 10);
  ExpectRecords(*log_, 1, 1, 40, size_t{1} << 20);
  EXPECT_GT(rocksdb::get_iostats_context()->bytes_read - before, uint64_t{40} << 20);
}

// A crash while a log is made leaves it under another name.
TEST_F(StepLogFaultTest, AHalfMadeLogIsMadeAgain) {
  log_.reset();
  fs::remove(folder() / "CURRENT");
  fs::rename(folder(), folder().string() + ".tmp-new");
  Open();
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  EXPECT_FALSE(fs::exists(folder().string() + ".tmp-new"));
}

}  // namespace
}  // namespace ccs
