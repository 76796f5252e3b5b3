#include "server/storage/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/storage/checkpoint_store.h"
#include "tests/server/storage/step_log_test_util.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class StepLogTest : public ::testing::Test {
 protected:
  void SetUp() override { log_ = OpenLog(directory_.path()); }
  void Reopen() {
    log_.reset();
    log_ = OpenLog(directory_.path());
  }
  static void ExpectCode(const absl::Status& status, absl::StatusCode code) {
    EXPECT_EQ(status.code(), code) << status;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<StepLog> log_;
};

TEST_F(StepLogTest, ANewLogIsEmptyAndStaysSo) {
  EXPECT_THAT(Listed(*log_), IsEmpty());
  Reopen();
  EXPECT_THAT(Listed(*log_), IsEmpty());
}

TEST_F(StepLogTest, ReadsBackWhatWasAppended) {
  ASSERT_TRUE(log_->Begin(7, 50, "checkpoint 3").ok());
  for (const bool reopened : {false, true}) {
    if (reopened) Reopen();
    const int64_t first = reopened ? 4 : 1;
    EXPECT_TRUE(log_->Append(7, first, {.step = 51, .payload = ""}).ok());
    EXPECT_TRUE(log_->Append(7, first + 1, RecordOf(7, first + 1)).ok());
    EXPECT_TRUE(log_->Append(7, first + 2, RecordOf(7, first + 2, 3 << 20)).ok());
  }
  for (const bool reopened : {false, true}) {
    if (reopened) Reopen();
    EXPECT_THAT(Listed(*log_), ElementsAre("7(checkpoint 3 at 50): 1..6 at 712"));
    EXPECT_TRUE(*log_->Read(7, 1) == (LogRecord{.step = 51, .payload = ""}));
    EXPECT_TRUE(*log_->Read(7, 5) == RecordOf(7, 5));
    EXPECT_TRUE(*log_->Read(7, 6) == RecordOf(7, 6, 3 << 20));
  }
}

TEST_F(StepLogTest, ListsLineagesOldestFirst) {
  const uint64_t greatest = ~uint64_t{0};
  for (const uint64_t lineage : {uint64_t{256}, greatest, uint64_t{2}}) {
    ASSERT_TRUE(log_->Begin(lineage, 9, "b").ok());
  }
  AppendRecords(*log_, 256, 1, 2);
  AppendRecords(*log_, greatest, 1, 1);
  Reopen();
  AppendRecords(*log_, 256, 3, 3);
  const auto list = log_->List();
  ASSERT_EQ(list->size(), 3);
  EXPECT_EQ((*list)[0].lineage, 2);
  EXPECT_EQ((*list)[0].last_step, 9);
  EXPECT_EQ((*list)[1].lineage, 256);
  EXPECT_EQ((*list)[1].last, 3);
  EXPECT_EQ((*list)[2].lineage, greatest);
  EXPECT_EQ((*list)[2].last, 1);
  ExpectRecords(*log_, 256, 1, 3);
  ExpectRecords(*log_, greatest, 1, 1);
}

TEST_F(StepLogTest, BeginReplacesOnlyALineageWithoutRecords) {
  ASSERT_TRUE(log_->Begin(1, 5, "first").ok());
  ASSERT_TRUE(log_->Begin(1, 6, "second").ok());
  EXPECT_THAT(Listed(*log_), ElementsAre("1(second at 6): 1..0 at 6"));
  AppendRecords(*log_, 1, 1, 2);
  ExpectCode(log_->Begin(1, 7, "third"), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(log_->Cut(1, 2).ok());  // numbers do not come back
  ExpectCode(log_->Begin(1, 7, "third"), absl::StatusCode::kFailedPrecondition);
  Reopen();
  EXPECT_THAT(Listed(*log_), ElementsAre("1(second at 6): 3..2 at 6"));
}

TEST_F(StepLogTest, RefusesARecordOutOfOrderAndGoesOn) {
  ExpectCode(log_->Append(1, 1, RecordOf(1, 1)), absl::StatusCode::kNotFound);
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 2);
  for (const int64_t index : {-1, 0, 1, 2, 4}) {
    ExpectCode(log_->Append(1, index, RecordOf(1, 9)), absl::StatusCode::kFailedPrecondition);
  }
  AppendRecords(*log_, 1, 3, 3);
  ExpectRecords(*log_, 1, 1, 3);
}

TEST_F(StepLogTest, ReadingWhatIsNotThereIsNotFound) {
  ExpectCode(log_->Read(1, 1).status(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 3);
  ASSERT_TRUE(log_->Cut(1, 1).ok());
  for (const int64_t index : {-1, 0, 1, 4}) {
    ExpectCode(log_->Read(1, index).status(), absl::StatusCode::kNotFound);
  }
  EXPECT_THAT(std::string(log_->Read(1, 4).status().message()), HasSubstr("2 to 3"));
}

TEST_F(StepLogTest, TruncatedRecordsAreGoneAndTheirNumbersFreeAgain) {
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  ASSERT_TRUE(log_->Begin(2, 0, "").ok());
  AppendRecords(*log_, 1, 1, 9);
  AppendRecords(*log_, 2, 1, 2);
  Reopen();
  ASSERT_TRUE(log_->Truncate(1, 4).ok());
  for (const bool reopened : {false, true}) {
    if (reopened) Reopen();
    EXPECT_THAT(Listed(*log_), ElementsAre("1( at 0): 1..4 at 108", "2( at 0): 1..2 at 204"));
    ExpectCode(log_->Read(1, 5).status(), absl::StatusCode::kNotFound);
  }
  AppendRecords(*log_, 1, 5, 6, 40, /*attempt=*/1);
  for (const bool reopened : {false, true}) {
    if (reopened) Reopen();
    ExpectRecords(*log_, 1, 1, 4);
    ExpectRecords(*log_, 1, 5, 6, 40, /*attempt=*/1);
    ExpectCode(log_->Read(1, 7).status(), absl::StatusCode::kNotFound);
    ExpectRecords(*log_, 2, 1, 2);
  }
  ASSERT_TRUE(log_->Truncate(1, 0).ok());
  EXPECT_TRUE(log_->Begin(1, 1, "again").ok());
}

TEST_F(StepLogTest, TruncateRefusesWhatTheLineageDoesNotHave) {
  ExpectCode(log_->Truncate(1, 0), absl::StatusCode::kNotFound);
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 5);
  ASSERT_TRUE(log_->Cut(1, 2).ok());
  ExpectCode(log_->Truncate(1, 6), absl::StatusCode::kFailedPrecondition);
  ExpectCode(log_->Truncate(1, 1), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(log_->Truncate(1, 5).ok());
  ExpectRecords(*log_, 1, 3, 5);
  EXPECT_TRUE(log_->Truncate(1, 2).ok());
  EXPECT_THAT(Listed(*log_), ElementsAre("1( at 0): 3..2 at 0"));
}

TEST_F(StepLogTest, CutRemovesRecordsAndEarlierLineagesAndKeepsTheNumbers) {
  for (const uint64_t lineage : {1, 2, 3}) {
    ASSERT_TRUE(log_->Begin(lineage, 0, "").ok());
    AppendRecords(*log_, lineage, 1, 4);
  }
  ASSERT_TRUE(log_->Cut(2, 3).ok());
  for (const bool reopened : {false, true}) {
    if (reopened) Reopen();
    EXPECT_THAT(Listed(*log_), ElementsAre("2( at 0): 4..4 at 208", "3( at 0): 1..4 at 308"));
    ExpectCode(log_->Read(2, 3).status(), absl::StatusCode::kNotFound);
    ExpectCode(log_->Read(1, 4).status(), absl::StatusCode::kNotFound);
    ExpectRecords(*log_, 2, 4, 4);
    ExpectRecords(*log_, 3, 1, 4);
  }
  ASSERT_TRUE(log_->Cut(2, 4).ok());
  Reopen();
  EXPECT_THAT(Listed(*log_), ElementsAre("2( at 0): 5..4 at 0", "3( at 0): 1..4 at 308"));
  AppendRecords(*log_, 2, 5, 5);
  ASSERT_TRUE(log_->Cut(3, 0).ok());
  EXPECT_THAT(Listed(*log_), ElementsAre("3( at 0): 1..4 at 308"));
}

TEST_F(StepLogTest, CutRefusesWhatTheLineageDoesNotHave) {
  ExpectCode(log_->Cut(1, 0), absl::StatusCode::kNotFound);
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  AppendRecords(*log_, 1, 1, 5);
  ExpectCode(log_->Cut(1, 6), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(log_->Cut(1, 3).ok());
  EXPECT_TRUE(log_->Cut(1, 2).ok()) << "less than before is nothing";
  EXPECT_EQ(log_->List()->front().first, 4);
  EXPECT_TRUE(log_->Cut(1, 3).ok());
  ExpectRecords(*log_, 1, 4, 5);
}

// 100 MiB go through it. What may lie there: two buffers' write-ahead logs, a file that the last cut went
// through, and records that the cut has not reached.
TEST_F(StepLogTest, CutGivesTheSpaceBack) {
  constexpr size_t kBytes = size_t{256} << 10;
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  int64_t most = 0;
  for (int64_t index = 1; index <= 400; ++index) {
    AppendRecords(*log_, 1, index, index, kBytes);
    if (index % 20 == 0) {
      ASSERT_TRUE(log_->Cut(1, index - 10).ok());
    }
    most = std::max(most, FolderBytes(LogDirectory(directory_.path())));
  }
  EXPECT_LT(most, int64_t{56} << 20);
  Reopen();
  ExpectRecords(*log_, 1, 391, 400, kBytes);
  ASSERT_TRUE(log_->Cut(1, 400).ok());
  EXPECT_LT(FolderBytes(LogDirectory(directory_.path())), int64_t{16} << 20);
}

TEST_F(StepLogTest, ALogThatIsSetAsideMakesRoomForANewOne) {
  const auto set_aside = [&] { return SetStepLogAside(directory_.path(), kRank, kNumShards); };
  for (const char* name : {"log.damaged-1", "log.damaged-2"}) {
    ASSERT_TRUE(log_->Begin(1, 0, "").ok());
    log_.reset();
    const auto aside = set_aside();
    ASSERT_TRUE(aside.ok()) << aside.status();
    EXPECT_EQ(*aside, ShardDirectory(directory_.path()) / name);
    EXPECT_TRUE(fs::exists(*aside / "CURRENT"));
    ExpectCode(set_aside().status(), absl::StatusCode::kNotFound);
    log_ = OpenLog(directory_.path());
    EXPECT_THAT(Listed(*log_), IsEmpty());
  }
}

TEST_F(StepLogTest, TheCheckpointStoreLeavesTheLogAlone) {
  const CheckpointId id = {.lineage = 1, .step = 100, .nonce = 0xabc};
  ASSERT_TRUE(log_->Begin(1, 0, "").ok());
  auto store = OpenStore(directory_.path());
  ASSERT_TRUE(Save(*store, id).ok());
  AppendRecords(*log_, 1, 1, 1);
  log_.reset();
  ASSERT_TRUE(SetStepLogAside(directory_.path(), kRank, kNumShards).ok());
  log_ = OpenLog(directory_.path());
  ASSERT_TRUE(log_->Begin(2, 0, "").ok());
  CapturedLog logged;
  store.reset();
  store = OpenStore(directory_.path());
  EXPECT_THAT(ListIds(*store), ElementsAre(id.ToString()));
  ASSERT_TRUE(store->Prune(id, 1).ok());
  EXPECT_EQ(logged.text(), "");
  AppendRecords(*log_, 2, 1, 1);
  Reopen();
  EXPECT_THAT(Listed(*log_), ElementsAre("2( at 0): 1..1 at 202"));
  EXPECT_TRUE(fs::exists(ShardDirectory(directory_.path()) / "log.damaged-1"));
}

TEST_F(StepLogTest, ASecondOneInTheSameFolderIsRefused) {
  ExpectCode(OpenStepLog(directory_.path(), kRank, kNumShards).status(), absl::StatusCode::kInternal);
}

TEST(StepLogOpenTest, NamesTheFolderThatItCannotCreate) {
  const absl::Status status = OpenStepLog("/proc/no-such", 0, 1).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("/proc/no-such"));
}

}  // namespace
}  // namespace ccs
