// A long run of small steps: memory and disk of the shards stay as they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/distributed/trainers.h"
#include "tests/testing/process_cluster.h"

namespace ccs::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kClasses = 53;
constexpr int kDim = 16;
constexpr int kRows = 64;
constexpr int64_t kSteps = 100'000;
constexpr int64_t kCheckpointEvery = 500;
// By then the log's write buffers have been filled and flushed more than once.
constexpr int64_t kWarmUp = 30'000;
constexpr int64_t kHalf = (kSteps - kWarmUp) / 2;
constexpr int64_t kSampleEvery = 450;  // now just after a checkpoint, now just before one

struct Use {
  int64_t resident = 0;  // of the largest shard
  int64_t disk = 0;      // of all
  int64_t files = 0;     // of all
};

Use Max(const Use& a, const Use& b) {
  return {std::max(a.resident, b.resident), std::max(a.disk, b.disk), std::max(a.files, b.files)};
}

Use DiskUse(const fs::path& directory) {
  Use use;
  std::error_code error;  // files go while one looks
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const auto size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
    if (gone) continue;
    use.disk += static_cast<int64_t>(size);
    ++use.files;
  }
  return use;
}

class SoakTest : public ::testing::TestWithParam<int> {};

TEST_P(SoakTest, AHundredThousandStepsHoldMemoryAndDiskFlat) {
  TempDir directory;
  ProcessCluster cluster(
      {.server_binary = CCS_SERVER_BINARY,
       .num_shards = GetParam(),
       .model = absl::StrCat("num_classes: ", kClasses, " dim: ", kDim, " sample_rate: 0.5 seed: 7"),
       .flags = {absl::StrCat("--checkpoint_every=", kCheckpointEvery),
                 absl::StrCat("--checkpoint_dir=", (directory.path() / "checkpoints").string())},
       .threads = 1},
      directory.path());
  ASSERT_TRUE(cluster.StartAll().ok());
  auto trainers = Trainers::Open(cluster, 1);
  ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
  const absl::Time start = absl::Now();
  Use first_half;
  Use second_half;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto results = trainers->Step({RandomRows(kClasses, kDim, kRows, step, 0)}, 0.1f);
    ASSERT_TRUE(results[0].ok()) << "step " << step << ": " << results[0].status();
    if (step % kSampleEvery != 0) continue;
    Use use = DiskUse(cluster.checkpoint_dir());
    for (int rank = 0; rank < GetParam(); ++rank) {
      use.resident = std::max(use.resident, cluster.shard(rank).ResidentBytes());
    }
    if (step > kWarmUp) {
      Use& half = step <= kWarmUp + kHalf ? first_half : second_half;
      half = Max(half, use);
    }
    if (step % (10 * kSampleEvery) != 0) continue;
    std::printf("step %6lld  %6.0f s  resident %4lld KiB  disk %6lld KiB\n", static_cast<long long>(step),
                absl::ToDoubleSeconds(absl::Now() - start), static_cast<long long>(use.resident >> 10),
                static_cast<long long>(use.disk >> 10));
    std::fflush(stdout);
  }
  std::printf(
      "at most, steps %lld on: resident %lld, then %lld KiB; disk %lld, then %lld KiB; files %lld, then "
      "%lld\n",
      static_cast<long long>(kWarmUp), static_cast<long long>(first_half.resident >> 10),
      static_cast<long long>(second_half.resident >> 10), static_cast<long long>(first_half.disk >> 10),
      static_cast<long long>(second_half.disk >> 10), static_cast<long long>(first_half.files),
      static_cast<long long>(second_half.files));
  // A leak of 100 bytes a step would be 3.5 MB more in the second half.
  EXPECT_LE(second_half.resident, first_half.resident + (int64_t{3} << 20));
  // Disk goes up and down with the log, by how much depends on when one looks; a tenth of what a half logs is
  // more.
  EXPECT_LE(second_half.disk, first_half.disk + kHalf * kRows * kDim * int64_t{sizeof(float)} / 10);
  // A file left behind by each checkpoint would be 70 more.
  EXPECT_LE(second_half.files, first_half.files + 10);
  const absl::Status stopped = cluster.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

INSTANTIATE_TEST_SUITE_P(Shards, SoakTest, ::testing::Values(1, 2),
                         [](const auto& info) { return absl::StrCat(info.param); });

}  // namespace
}  // namespace ccs::testing
