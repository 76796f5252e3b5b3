#include "server/engine/row_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "kernels/shard_backend.h"

namespace ccs {
namespace {

constexpr int kDim = 4;
constexpr int64_t kStart = 100;  // in the middle of a block
constexpr int64_t kRows = 601;
constexpr int64_t kRowsPerBlock = 3;
constexpr int64_t kBlockBytes = kRowsPerBlock * 2 * kDim * sizeof(float);
constexpr int64_t kAmple = int64_t{1} << 20;

class RowSnapshotTest : public ::testing::Test {
 protected:
  RowSnapshotTest() {
    kernels::ShardConfig config;
    config.class_start = kStart;
    config.num_local = kRows;
    config.dim = kDim;
    config.max_batch = 1;
    backend_ = kernels::MakeCpuBackend(config).value();
    for (int64_t row = 0; row < kRows; ++row) Write(row, 0);
  }

  // Every float of a row tells the row and the round it was written in.
  static float Value(int64_t row, int64_t round) { return static_cast<float>(row + 1000 * round); }
  void Write(int64_t row, int64_t round) {
    const std::vector<float> weight(kDim, Value(row, round));
    const std::vector<float> momentum(kDim, -Value(row, round));
    ASSERT_TRUE(backend_->WriteRows(row, 1, weight.data(), momentum.data()).ok());
  }
  void Change(RowSnapshot& snapshot, const std::vector<int64_t>& rows, int64_t round) {
    snapshot.BeforeChange(rows);
    for (const int64_t row : rows) Write(row, round);
  }

  // Takes all that is left: row -> value.
  static std::map<int64_t, float> TakeAll(RowSnapshot& snapshot) {
    std::map<int64_t, float> taken;
    RowPiece piece;
    while (true) {
      EXPECT_TRUE(snapshot.Take(&piece).ok());
      if (piece.num_rows == 0) return taken;
      for (int64_t i = 0; i < piece.num_rows; ++i) {
        EXPECT_FALSE(taken.contains(piece.first_row + i)) << "twice";
        for (int d = 0; d < kDim; ++d) {
          EXPECT_EQ(piece.weight[i * kDim + d], piece.weight[i * kDim]);
          EXPECT_EQ(piece.momentum[i * kDim + d], -piece.weight[i * kDim]);
        }
        taken[piece.first_row + i] = piece.weight[i * kDim];
      }
    }
  }

  std::unique_ptr<kernels::ShardBackend> backend_;
};

TEST_F(RowSnapshotTest, HoldsTheRowsOfItsBeginningHoweverTheyChange) {
  RowSnapshot snapshot(backend_.get(), kRowsPerBlock, kAmple);
  snapshot.Begin(/*everything=*/false);
  Change(snapshot, {0, 5, 600, 300}, 1);
  Change(snapshot, {5, 6}, 2);
  const std::map<int64_t, float> taken = TakeAll(snapshot);
  EXPECT_EQ(taken.size(), kRows) << "at first all rows count as changed";
  for (const auto& [row, value] : taken) EXPECT_EQ(value, Value(row, 0)) << row;
}

TEST_F(RowSnapshotTest, TheNextOneHoldsOnlyBlocksThatHaveChangedSince) {
  RowSnapshot snapshot(backend_.get(), kRowsPerBlock, kAmple);
  snapshot.Begin(false);
  (void)TakeAll(snapshot);
  Change(snapshot, {7}, 1);  // while the first one is still open
  snapshot.End(/*kept=*/true);
  Change(snapshot, {600}, 1);
  EXPECT_EQ(snapshot.num_changed(), 2);
  snapshot.Begin(false);
  const std::map<int64_t, float> taken = TakeAll(snapshot);
  // Class 107 is in the block of 105 to 107, class 700 in that of 699 to 701, of which the shard has 699 and
  // 700.
  EXPECT_EQ(
      taken,
      (std::map<int64_t, float>{
          {5, Value(5, 0)}, {6, Value(6, 0)}, {7, Value(7, 1)}, {599, Value(599, 0)}, {600, Value(600, 1)}}));
}

TEST_F(RowSnapshotTest, BlocksOfOneThatWasNotKeptAreInTheNext) {
  RowSnapshot snapshot(backend_.get(), kRowsPerBlock, kAmple);
  snapshot.SetAllChanged(false);
  Change(snapshot, {7}, 1);
  snapshot.Begin(false);
  Change(snapshot, {30}, 1);
  snapshot.End(/*kept=*/false);
  EXPECT_EQ(snapshot.num_changed(), 2);
  snapshot.Begin(false);
  EXPECT_EQ(TakeAll(snapshot).count(7), 1);
  snapshot.End(true);
  EXPECT_EQ(snapshot.num_changed(), 0);
  snapshot.Begin(/*everything=*/true);
  EXPECT_EQ(TakeAll(snapshot).size(), kRows);
}

TEST_F(RowSnapshotTest, AChangeWaitsForRoomAndNoLonger) {
  RowSnapshot snapshot(backend_.get(), kRowsPerBlock, 2 * kBlockBytes);
  snapshot.Begin(false);
  std::atomic<bool> changed = false;
  std::thread engine([&] {
    Change(snapshot, {20, 40, 60}, 1);  // three blocks, room for two
    changed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(changed);
  RowPiece piece;
  ASSERT_TRUE(snapshot.Take(&piece).ok());  // the first staged block, and its room with the next call
  ASSERT_TRUE(snapshot.Take(&piece).ok());
  engine.join();
  for (const auto& [row, value] : TakeAll(snapshot)) EXPECT_EQ(value, Value(row, 0)) << row;
}

TEST_F(RowSnapshotTest, AbandoningItReleasesAChangeThatWaits) {
  RowSnapshot snapshot(backend_.get(), kRowsPerBlock, 0);
  snapshot.Begin(false);
  std::thread engine([&] { Change(snapshot, {20, 40, 60}, 1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  snapshot.Abandon();
  engine.join();
  snapshot.End(false);
  EXPECT_EQ(snapshot.num_changed(), snapshot.num_blocks());
}

TEST_F(RowSnapshotTest, WithRandomChangesAtAnyMomentEverySnapshotIsOfItsBeginning) {
  std::mt19937 random(3);
  for (const int64_t staging : {int64_t{0}, 5 * kBlockBytes, kAmple}) {
    RowSnapshot snapshot(backend_.get(), kRowsPerBlock, staging);
    std::vector<float> now(kRows);
    for (int64_t row = 0; row < kRows; ++row) {
      Write(row, 0);
      now[row] = Value(row, 0);
    }
    std::vector<float> written(kRows);  // what the kept snapshots together hold
    for (int64_t round = 1; round <= 30; ++round) {
      const std::vector<float> want = now;
      snapshot.Begin(round % 7 == 0);
      std::map<int64_t, float> taken;
      std::thread taker([&] { taken = TakeAll(snapshot); });
      for (int step = 0; step < 4; ++step) {
        std::vector<int64_t> rows;
        for (int i = 0; i < 40; ++i) rows.push_back(static_cast<int64_t>(random() % kRows));
        Change(snapshot, rows, 4 * round + step);
        for (const int64_t row : rows) now[row] = Value(row, 4 * round + step);
      }
      taker.join();
      const bool kept = random() % 3 != 0;
      snapshot.End(kept);
      for (const auto& [row, value] : taken) ASSERT_EQ(value, want[row]) << round << " " << row;
      if (!kept) continue;
      for (const auto& [row, value] : taken) written[row] = value;
      ASSERT_EQ(written, want) << round;
    }
  }
}

}  // namespace
}  // namespace ccs
