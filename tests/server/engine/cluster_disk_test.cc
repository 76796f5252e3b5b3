// A cluster of real parts in one process whose checkpoints are on a real disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/storage/checkpoint_store.h"
#include "server/storage/part_folder.h"
#include "tests/server/engine/cluster_cases.h"

namespace ccs::testing {
namespace {

class ClusterDiskTest : public TwoShardsTest {
 protected:
  ClusterDiskTest() {
    std::string pattern = ::testing::TempDir() + "ccs_cluster_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    options_.checkpoint_interval_steps = 2;
    options_.open_checkpoints = [this](int rank) {
      return std::shared_ptr<CheckpointStore>(OpenCheckpointStore(directory_, rank, 2).value());
    };
  }
  ~ClusterDiskTest() override {
    cluster_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Until both shards have their part of the step's checkpoint.
  void WaitOnDisk(int64_t step) {
    for (int rank = 0; rank < 2;) {
      const auto ids = PartFolder(directory_, rank, 2).Ids();
      ASSERT_TRUE(ids.ok()) << ids.status();
      if (std::any_of(ids->begin(), ids->end(), [&](const CheckpointId& id) { return id.step == step; })) {
        ++rank;
        continue;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::filesystem::path directory_;
};

TEST_F(ClusterDiskTest, ARestartedClusterGoesOnWithTheSameBitsAndKnowsItsWrites) {
  const auto want = Uninterrupted(4, 7);
  Begin();
  Train(trainers_.get(), kTrainers, 5);
  WaitOnDisk(4);
  Begin();
  EXPECT_EQ(trainers_->position().step, 4);
  ExpectSameAs(want, 7);

  const std::vector<float> centres(2 * kCaseDim, 3.0f);
  ASSERT_TRUE(cluster_->StageCentres("w", {1, 15}, centres).ok());
  ASSERT_TRUE(cluster_->CommitCentres(0, "w", 2).ok());
  ASSERT_TRUE(cluster_->Drain(0).ok());
  Begin();
  EXPECT_EQ(trainers_->position().step, 7);
  EXPECT_EQ(cluster_->ReadCentres({1, 15})->centres, centres);
  EXPECT_TRUE(cluster_->CommitCentres(1, "w", 2).ok()) << "nothing is staged, but it is done already";
}

TEST_F(ClusterDiskTest, AKilledShardComesBackFromItsDisk) {
  const auto want = Uninterrupted(2, 4);
  Begin();
  Train(trainers_.get(), kTrainers, 3);
  WaitOnDisk(2);
  const uint64_t epoch = cluster_->epoch();
  cluster_->Kill(1);
  cluster_->Start(1);
  ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
  ASSERT_TRUE(trainers_->Open().ok());
  EXPECT_EQ(trainers_->position().step, 2);
  ExpectSameAs(want, 4);
}

TEST_F(ClusterDiskTest, WithAStepLogAKilledShardAndARestartedClusterLoseNothing) {
  options_.open_log = [this](int rank) {
    return std::shared_ptr<StepLog>(OpenStepLog(directory_, rank, 2).value());
  };
  const auto want = Uninterrupted(5, 7);
  Begin();
  Train(trainers_.get(), kTrainers, 5);
  const uint64_t epoch = cluster_->epoch();
  cluster_->Kill(1);
  cluster_->Start(1);
  ASSERT_TRUE(cluster_->WaitServing(epoch).ok());
  RestartUnderTheTrainers();
  ExpectSameAs(want, 7);
}

}  // namespace
}  // namespace ccs::testing
