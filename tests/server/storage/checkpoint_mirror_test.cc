// The mirror: what is copied there, and what a shard that lost its disk gets back.
#include "server/storage/checkpoint_mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <fstream>
#include <mutex>

#include "server/storage/checkpoint_files.h"
#include "tests/server/storage/checkpoint_test_util.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CheckpointMirrorTest : public ::testing::Test {
 protected:
  CheckpointMirrorTest() { OpenBoth(); }

  void OpenBoth() {
    mirror_.reset();
    store_.reset();
    auto store = OpenCheckpointStore(directory_.path(), kRank, kNumShards, place_.path());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto mirror = CheckpointMirror::Open({.checkpoint_dir = directory_.path(),
                                          .mirror_dir = place_.path(),
                                          .rank = kRank,
                                          .num_shards = kNumShards,
                                          .keep = 2,
                                          .on_copied = [this](const absl::Status& status) {
                                            std::lock_guard lock(mutex_);
                                            copied_.push_back(status);
                                            changed_.notify_all();
                                          }});
    ASSERT_TRUE(mirror.ok()) << mirror.status();
    mirror_ = *std::move(mirror);
  }

  absl::Status Mirror(const CheckpointId& id) {
    std::unique_lock lock(mutex_);
    const size_t before = copied_.size();
    mirror_->Offer(id);
    changed_.wait(lock, [&] { return copied_.size() > before; });
    return copied_.back();
  }

  void LoseTheDisk() {
    store_.reset();
    fs::remove_all(ShardDirectory(directory_.path()));
    OpenBoth();
  }

  std::vector<std::string> Mirrored() { return ListIds(*OpenStore(place_.path())); }

  static void ExpectWhole(CheckpointStore& store, const CheckpointId& id) {
    const auto reader = store.Open(id);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const CheckpointHeader& header = (*reader)->header();
    const Rows want = MakeRows(header.class_start, header.num_local, header.dim);
    Rows rows{std::vector<float>(want.weight.size()), std::vector<float>(want.weight.size())};
    ASSERT_TRUE((*reader)
                    ->ReadRows(header.class_start, header.num_local, rows.weight.data(), rows.momentum.data())
                    .ok());
    EXPECT_EQ(std::memcmp(rows.weight.data(), want.weight.data(), want.weight.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(rows.momentum.data(), want.momentum.data(), want.weight.size() * sizeof(float)), 0);
  }

  const TemporaryDirectory directory_;
  const TemporaryDirectory place_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<absl::Status> copied_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<CheckpointMirror> mirror_;
};

TEST_F(CheckpointMirrorTest, AShardThatLostItsDiskGetsItsCheckpointsBack) {
  ASSERT_TRUE(Save(*store_, {1, 10, 1}).ok());
  ASSERT_TRUE(Mirror({1, 10, 1}).ok());
  LoseTheDisk();
  EXPECT_THAT(ListIds(*store_), ElementsAre("1-10-0000000000000001"));
  ExpectWhole(*store_, {1, 10, 1});
  EXPECT_TRUE(fs::exists(ShardDirectory(directory_.path()) / "1-10-0000000000000001")) << "copied back";
}

TEST_F(CheckpointMirrorTest, ADamagedCheckpointIsReplacedByTheMirrorsAndSetAside) {
  ASSERT_TRUE(Save(*store_, {1, 10, 1}).ok());
  ASSERT_TRUE(Mirror({1, 10, 1}).ok());
  const fs::path checkpoint = ShardDirectory(directory_.path()) / "1-10-0000000000000001";
  for (const auto& entry : fs::directory_iterator(checkpoint / "rows")) {
    if (entry.path().extension() == ".sst") fs::resize_file(entry.path(), fs::file_size(entry.path()) - 1);
  }
  OpenBoth();
  EXPECT_THAT(ListIds(*store_), ElementsAre("1-10-0000000000000001"));
  ExpectWhole(*store_, {1, 10, 1});
  EXPECT_TRUE(fs::exists(checkpoint.string() + ".damaged"));
}

TEST_F(CheckpointMirrorTest, KeepsTheNewestAndSharesTheirTables) {
  ASSERT_TRUE(Save(*store_, {1, 10, 1}).ok());
  ASSERT_TRUE(Mirror({1, 10, 1}).ok());
  for (const int64_t step : {20, 30}) {
    const CheckpointId id{1, step, 1};
    auto writer = store_->Create(SmallHeader(id), CheckpointId{1, step - 10, 1});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(AddRows(**writer, 702, 3, SmallHeader(id).dim).ok());
    ASSERT_TRUE((*writer)->Commit().ok());
    ASSERT_TRUE(Mirror(id).ok());
  }
  EXPECT_THAT(Mirrored(), ElementsAre("1-20-0000000000000001", "1-30-0000000000000001"));
  int shared = 0;
  const fs::path newest = ShardDirectory(place_.path()) / "1-30-0000000000000001" / "rows";
  for (const auto& entry : fs::directory_iterator(newest)) {
    if (entry.path().extension() == ".sst" && fs::hard_link_count(entry.path()) > 1) ++shared;
  }
  EXPECT_GE(shared, 2) << "the first one's tables and the second's";
  ExpectWhole(*OpenStore(place_.path()), {1, 30, 1});
}

TEST_F(CheckpointMirrorTest, WhatIsKeptIsKeptThereTooUntilItIsReleased) {
  CheckpointHeader header = SmallHeader({1, 10, 1});
  header.kept = true;
  auto writer = store_->Create(header);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(AddRows(**writer, header.class_start, header.num_local, header.dim).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  ASSERT_TRUE(Mirror(header.id).ok());
  for (const int64_t step : {20, 30, 40}) {
    ASSERT_TRUE(Save(*store_, {1, step, 1}).ok());
    ASSERT_TRUE(Mirror({1, step, 1}).ok());
  }
  EXPECT_THAT(Mirrored(),
              ElementsAre("1-10-0000000000000001", "1-30-0000000000000001", "1-40-0000000000000001"));
  LoseTheDisk();
  ASSERT_EQ(store_->List()->size(), 3u);
  EXPECT_TRUE(store_->List()->front().header.kept);
  ASSERT_TRUE(store_->Open(header.id).ok()) << "copied back";
  EXPECT_TRUE(store_->List()->front().header.kept);

  ASSERT_TRUE(store_->Release(header.id).ok());
  EXPECT_FALSE(store_->List()->front().header.kept);
  ASSERT_TRUE(Save(*store_, {1, 50, 1}).ok());
  ASSERT_TRUE(Mirror({1, 50, 1}).ok());
  EXPECT_THAT(Mirrored(), ElementsAre("1-40-0000000000000001", "1-50-0000000000000001"));
}

TEST_F(CheckpointMirrorTest, DamageIsNotCopied) {
  ASSERT_TRUE(Save(*store_, {1, 10, 1}).ok());
  const fs::path rows = ShardDirectory(directory_.path()) / "1-10-0000000000000001" / "rows";
  for (const auto& entry : fs::directory_iterator(rows)) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(500);
    file.put('x');
  }
  EXPECT_TRUE(absl::IsDataLoss(Mirror({1, 10, 1})));
  EXPECT_TRUE(absl::IsNotFound(Mirror({1, 11, 1})));
  EXPECT_THAT(Mirrored(), IsEmpty());
}

TEST_F(CheckpointMirrorTest, AnotherNumberOfShardsReadsItFromTheMirror) {
  SaveWhole(place_.path(), {1, 10, 1}, /*num_shards=*/2, 23);
  EXPECT_THAT(ListIds(*store_), ElementsAre("1-10-0000000000000001"));
  EXPECT_TRUE(store_->Open({1, 10, 1}).ok());
}

}  // namespace
}  // namespace ccs
