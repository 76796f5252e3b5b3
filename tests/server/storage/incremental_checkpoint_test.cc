// Checkpoints that build on another one: what is shared, what is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "server/storage/checkpoint_store.h"
#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

const CheckpointId kBase{1, 10, 1};
const CheckpointId kNext{1, 20, 2};

class IncrementalCheckpointTest : public ::testing::Test {
 protected:
  IncrementalCheckpointTest() : store_(OpenStore(directory_.path())) {}

  // Adds rows whose values are those that other classes have in the base.
  static absl::Status AddOthers(CheckpointWriter& writer, int64_t first_class, int64_t num_rows,
                                int64_t shift) {
    const Rows rows = MakeRows(first_class + shift, num_rows, SmallHeader(kNext).dim);
    return writer.AddRows(first_class, num_rows, rows.weight.data(), rows.momentum.data());
  }

  static void ExpectOthers(CheckpointReader& reader, int64_t first_class, int64_t num_rows, int64_t shift) {
    const int dim = reader.header().dim;
    const Rows want = MakeRows(first_class + shift, num_rows, dim);
    Rows rows{std::vector<float>(num_rows * dim), std::vector<float>(num_rows * dim)};
    ASSERT_TRUE(reader.ReadRows(first_class, num_rows, rows.weight.data(), rows.momentum.data()).ok());
    const size_t bytes = num_rows * dim * sizeof(float);
    EXPECT_EQ(std::memcmp(rows.weight.data(), want.weight.data(), bytes), 0) << first_class;
    EXPECT_EQ(std::memcmp(rows.momentum.data(), want.momentum.data(), bytes), 0) << first_class;
  }

  // Classes [702, 708) are others than in the base.
  absl::StatusOr<CheckpointSize> SaveNext() {
    auto writer = store_->Create(SmallHeader(kNext), kBase);
    if (!writer.ok()) return writer.status();
    absl::Status status = AddOthers(**writer, 702, 6, 5000);
    if (status.ok()) status = (*writer)->AddRecord("later", "run 8");
    if (!status.ok()) return status;
    return (*writer)->Commit();
  }

  std::vector<fs::path> TablesOf(const CheckpointId& id) const {
    std::vector<fs::path> tables;
    for (const auto& entry :
         fs::directory_iterator(ShardDirectory(directory_.path()) / id.ToString() / "rows")) {
      if (entry.path().extension() == ".sst") tables.push_back(entry.path());
    }
    return tables;
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<CheckpointStore> store_;
};

TEST_F(IncrementalCheckpointTest, HoldsTheNewRowsAndThoseOfTheBase) {
  ASSERT_TRUE(Save(*store_, kBase).ok());
  const auto size = SaveNext();
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_LT(size->new_bytes, size->bytes / 20);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto reader = store_->Open(kNext);
    ASSERT_TRUE(reader.ok()) << reader.status();
    ExpectOthers(**reader, 700, 2, 0);
    ExpectOthers(**reader, 702, 6, 5000);
    ExpectOthers(**reader, 708, 1493, 0);
    EXPECT_THAT(*(*reader)->ReadRecords(), ElementsAre(Pair("later", "run 8"))) << "none of the base's";
    const auto base = store_->Open(kBase);
    ASSERT_TRUE(base.ok()) << base.status();
    ExpectOthers(**base, 700, 1501, 0);
    store_.reset();
    store_ = OpenStore(directory_.path());
  }
}

TEST_F(IncrementalCheckpointTest, SharesTheFilesOfTheBaseAndOutlivesIt) {
  ASSERT_TRUE(Save(*store_, kBase).ok());
  ASSERT_TRUE(SaveNext().ok());
  for (const fs::path& table : TablesOf(kBase)) EXPECT_EQ(fs::hard_link_count(table), 2) << table;
  ASSERT_TRUE(store_->Prune(kNext, 1).ok());
  EXPECT_THAT(ListIds(*store_), ElementsAre(kNext.ToString()));
  const auto reader = store_->Open(kNext);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectOthers(**reader, 702, 6, 5000);
  ExpectOthers(**reader, 708, 1493, 0);
}

TEST_F(IncrementalCheckpointTest, DamageToASharedFileIsSeenInBoth) {
  ASSERT_TRUE(Save(*store_, kBase).ok());
  // Between the base's commit and the next checkpoint, so that a digest taken anew would vouch for it.
  const fs::path table = TablesOf(kBase).front();
  std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(1000);
  file.put('x');
  file.close();
  ASSERT_TRUE(SaveNext().ok());
  EXPECT_TRUE(absl::IsDataLoss(store_->Open(kNext).status()));
  EXPECT_TRUE(absl::IsDataLoss(store_->Open(kBase).status()));
  store_.reset();
  store_ = OpenStore(directory_.path());
  EXPECT_THAT(ListIds(*store_), IsEmpty());
}

TEST_F(IncrementalCheckpointTest, RefusesABaseThatIsMissingOrOfOtherClasses) {
  EXPECT_TRUE(absl::IsNotFound(SaveNext().status()));
  ASSERT_TRUE(Save(*store_, kBase).ok());
  CheckpointHeader header = SmallHeader(kNext);
  header.class_start += 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Create(header, kBase).status()));
  header = SmallHeader(kNext);
  header.dim = 85;
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Create(header, kBase).status()));
  EXPECT_THAT(ListIds(*store_), ElementsAre(kBase.ToString()));
}

TEST_F(IncrementalCheckpointTest, ALongChainIsWhatItsLastWritersLeft) {
  std::mt19937 random(7);
  ASSERT_TRUE(Save(*store_, {1, 0, 0}).ok());
  std::map<int64_t, int64_t> shift_of_block;  // by first class
  for (int64_t first = 700; first < 2201; first = (first / 3 + 1) * 3) shift_of_block[first] = 0;
  for (int64_t generation = 1; generation <= 12; ++generation) {
    const CheckpointId id{1, generation, 0};
    auto writer = store_->Create(SmallHeader(id), CheckpointId{1, generation - 1, 0});
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::vector<int64_t> blocks;
    for (const auto& [first, shift] : shift_of_block) {
      if (random() % 4 == 0) blocks.push_back(first);
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (const int64_t first : blocks) {
      const int64_t end = std::min<int64_t>(2201, (first / 3 + 1) * 3);
      shift_of_block[first] = 10'000 * generation;
      ASSERT_TRUE(AddOthers(**writer, first, end - first, 10'000 * generation).ok());
    }
    ASSERT_TRUE((*writer)->Commit().ok());
    ASSERT_TRUE(store_->Prune(id, 1).ok());
  }
  const auto reader = store_->Open({1, 12, 0});
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const auto& [first, shift] : shift_of_block) {
    ExpectOthers(**reader, first, std::min<int64_t>(2201, (first / 3 + 1) * 3) - first, shift);
  }
}

}  // namespace
}  // namespace ccs
