#include "server/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "server/storage/part_folder.h"
#include "server/storage/whole_checkpoints.h"
#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
namespace fs = std::filesystem;

constexpr CheckpointId kId = {.lineage = 1, .step = 100, .nonce = 0xabc};
constexpr CheckpointId kOlder = {.lineage = 1, .step = 50, .nonce = 0xdef};
constexpr int64_t kClasses = 23;
constexpr int kFrom = 3;

class ReshardTest : public ::testing::Test {
 protected:
  void SetUp() override { SaveWhole(from_.path(), kId, kFrom, kClasses); }

  absl::Status Run(int num_shards, const std::string& checkpoint = "latest") {
    progress_.str("");
    return Reshard({from_.path(), to_.path(), num_shards, checkpoint}, progress_);
  }

  fs::path Original(int rank, const CheckpointId& id = kId) const {
    return from_.path() / PartFolderName(rank, kFrom) / id.ToString();
  }
  fs::path Copy(int rank, int num_shards) const {
    return to_.path() / PartFolderName(rank, num_shards) / kId.ToString();
  }

  // Each shard finds its part, as if it had written it.
  void ExpectCopy(int num_shards) {
    for (int rank = 0; rank < num_shards; ++rank) {
      const auto store = OpenCheckpointStore(to_.path(), rank, num_shards);
      ASSERT_TRUE(store.ok()) << store.status();
      const auto reader = (*store)->Open(kId);
      ASSERT_TRUE(reader.ok()) << reader.status();
      const CheckpointHeader& header = (*reader)->header();
      const ClassRange range = ClassRangeOf(kClasses, num_shards, rank);
      EXPECT_EQ(header.num_shards, num_shards);
      EXPECT_EQ(header.rank, rank);
      EXPECT_EQ(header.class_start, range.start);
      ASSERT_EQ(header.num_local, range.count);
      EXPECT_EQ(header.spec, "the spec");
      EXPECT_EQ(header.created, absl::FromUnixSeconds(1'700'000'000));
      ExpectRows(**reader, range.start, range.count);
      EXPECT_THAT(*(*reader)->ReadRecords(), ElementsAre(Pair("ledger", "run 7")));
    }
  }

  TemporaryDirectory from_;
  TemporaryDirectory to_;
  std::ostringstream progress_;
};

TEST_F(ReshardTest, TheCopyHasTheBitsTheIdAndTheLedgerOfTheOriginal) {
  for (const int num_shards : {1, 2, 3, 8, 30}) {
    const absl::Status status = Run(num_shards);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(progress_.str(),
                AllOf(HasSubstr(kId.ToString()), HasSubstr(absl::StrCat("of ", num_shards))));
    ExpectCopy(num_shards);
  }
}

TEST_F(ReshardTest, NothingIsOverwritten) {
  ASSERT_TRUE(Run(2).ok());
  const auto written = fs::last_write_time(Copy(1, 2) / "MANIFEST.json");
  EXPECT_EQ(Run(2).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(fs::last_write_time(Copy(1, 2) / "MANIFEST.json"), written);
  const absl::Status in_place = Reshard({from_.path(), from_.path(), kFrom, "latest"}, progress_);
  EXPECT_EQ(in_place.code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ReshardTest, AnInterruptedCopyIsCompletedAndWhatIsThereVerified) {
  ASSERT_TRUE(Run(4).ok());
  fs::remove_all(Copy(2, 4));
  fs::create_directory(Copy(2, 4).string() + ".tmp-1-0");
  ASSERT_TRUE(Run(4).ok());
  EXPECT_THAT(progress_.str(), AllOf(HasSubstr(Copy(0, 4).string() + " is there already"),
                                     HasSubstr("part 3 of 4"), Not(HasSubstr("part 1 of 4"))));
  ExpectCopy(4);

  fs::remove_all(Copy(2, 4));
  FlipBit(TableOf(Copy(1, 4)), 1000);
  const absl::Status status = Run(4);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(TableOf(Copy(1, 4)).string()));
  EXPECT_FALSE(fs::exists(Copy(2, 4)));
}

TEST_F(ReshardTest, TheLatestWholeOneIsTakenAndWhyNewerOnesAreNotSaid) {
  SaveWhole(from_.path(), kOlder, kFrom, kClasses);
  SaveWhole(from_.path(), {1, 150, 7}, 5, kClasses);
  const fs::path gone = from_.path() / PartFolderName(3, 5);
  fs::remove_all(gone);
  ASSERT_TRUE(Run(2).ok());
  EXPECT_THAT(progress_.str(), HasSubstr(gone.string() + " is missing"));
  ExpectCopy(2);
}

TEST_F(ReshardTest, ACheckpointCanBeChosenByItsId) {
  SaveWhole(from_.path(), {1, 150, 7}, kFrom, kClasses);
  ASSERT_TRUE(Run(2, kId.ToString()).ok());
  ExpectCopy(2);
  const absl::Status status = Run(2, "1-101-0000000000000abc");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("there are 1-100-0000000000000abc, 1-150-"));
}

TEST_F(ReshardTest, AMissingOrDamagedPartIsNamedAndNothingIsWritten) {
  FlipBit(TableOf(Original(1)), 1000);
  absl::Status status = Run(2, kId.ToString());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(TableOf(Original(1)).string()));
  fs::remove_all(Original(1));
  status = Run(2, kId.ToString());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Original(1).string() + " is missing"));
  EXPECT_EQ(Run(2).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(fs::is_empty(to_.path()));
}

TEST_F(ReshardTest, WithoutCheckpointsOrWithoutTheFolderItSaysSo) {
  TemporaryDirectory empty;
  const absl::Status none = Reshard({empty.path(), to_.path(), 2, "latest"}, progress_);
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  const absl::Status missing = Reshard({empty.path() / "x", to_.path(), 2, "latest"}, progress_);
  EXPECT_THAT(std::string(missing.message()), HasSubstr((empty.path() / "x").string()));
}

TEST_F(ReshardTest, AFolderThatAShardUsesIsRefused) {
  const auto running = OpenCheckpointStore(to_.path(), 0, 2);
  ASSERT_TRUE(running.ok());
  const absl::Status status = Run(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard-0-of-2"));
}

}  // namespace
}  // namespace ccs
