// A checkpoint of one number of shards opened by clusters of another, and copies made by `ccsctl reshard`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/storage/part_folder.h"
#include "server/storage/whole_checkpoints.h"
#include "tests/distributed/trainers.h"
#include "tests/testing/process_cluster.h"

namespace ccs::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kDim = 16;
constexpr int kTrainers = 2;
constexpr int kStepsBefore = 3;
constexpr int kStepsAfter = 3;

struct Change {
  int from;
  int to;
  int num_classes;
};

// Every row in every step, since the draws differ between numbers of shards.
ProcessClusterOptions Options(int num_shards, int num_classes) {
  return {.server_binary = CCS_SERVER_BINARY,
          .num_shards = num_shards,
          .model = absl::StrCat("num_classes: ", num_classes, " dim: ", kDim,
                                " head { arcface {} scale: 16 } sample_rate: 1 seed: 7"),
          .flags = {"--heartbeat_interval_ms=100", "--heartbeat_timeout_ms=2000"},
          .threads = 1};
}

double TrainOneStep(Trainers& trainers, int num_classes, bool checkpoint = false) {
  const int64_t step = trainers.run().position().step + 1;
  std::vector<Rows> rows;
  for (int i = 0; i < trainers.size(); ++i) rows.push_back(RandomRows(num_classes, kDim, 5 + i, step, i));
  double loss = 0;
  for (const auto& result : trainers.Step(rows, 0.1f, checkpoint)) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) loss = result->loss;
  }
  return loss;
}

// Weights, then momentum, of all classes of one checkpoint.
std::vector<float> StateOf(const fs::path& checkpoint_dir, const CheckpointId& id) {
  WholeCheckpoints checkpoints({.checkpoint_dir = checkpoint_dir});
  const auto reader = checkpoints.Open(id);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return {};
  const int64_t classes = (*reader)->header().num_local;
  std::vector<float> state(2 * classes * kDim);
  const absl::Status status = (*reader)->ReadRows(0, classes, state.data(), state.data() + classes * kDim);
  EXPECT_TRUE(status.ok()) << status;
  return state;
}

std::vector<CheckpointId> IdsBelow(const fs::path& checkpoint_dir) {
  WholeCheckpoints checkpoints({.checkpoint_dir = checkpoint_dir});
  return checkpoints.Ids().value_or(std::vector<CheckpointId>());
}

class ReshardTest : public ::testing::TestWithParam<Change> {
 protected:
  fs::path checkpoints() const { return directory_.path() / "checkpoints"; }
  static std::string DirFlag(const fs::path& checkpoint_dir) {
    return absl::StrCat("--checkpoint_dir=", checkpoint_dir.string());
  }

  // Trains, and takes the last step's checkpoint. Returns the centres.
  std::vector<float> TrainAndStop(int num_shards, int num_classes) {
    ProcessCluster cluster(Options(num_shards, num_classes), directory_.path());
    EXPECT_TRUE(cluster.StartAll({DirFlag(checkpoints())}).ok());
    auto trainers = Trainers::Open(cluster, kTrainers);
    EXPECT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    if (!trainers.ok()) return {};
    for (int step = 1; step <= kStepsBefore; ++step) TrainOneStep(*trainers, num_classes);
    std::vector<float> centres = trainers->client().ReadCentres(AllClasses(num_classes)).value();
    const absl::Status stopped = cluster.Stop();
    EXPECT_TRUE(stopped.ok()) << stopped;
    return centres;
  }

  // The losses of the steps after `kStepsBefore`, without interruption.
  static std::vector<double> StraightRun(int num_shards, int num_classes) {
    TempDir directory;
    ProcessCluster cluster(Options(num_shards, num_classes), directory.path());
    EXPECT_TRUE(cluster.StartAll().ok());
    auto trainers = Trainers::Open(cluster, kTrainers);
    EXPECT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    std::vector<double> losses;
    for (int step = 1; step <= kStepsBefore + kStepsAfter; ++step) {
      const double loss = TrainOneStep(*trainers, num_classes);
      if (step > kStepsBefore) losses.push_back(loss);
    }
    const absl::Status stopped = cluster.Stop();
    EXPECT_TRUE(stopped.ok()) << stopped;
    return losses;
  }

  std::pair<int, std::string> Ctl(std::vector<std::string> arguments) {
    const fs::path log = directory_.path() / absl::StrCat("ctl-", calls_++);
    arguments.insert(arguments.begin(), CCSCTL_BINARY);
    absl::StatusOr<Process> process = Process::Start(arguments, log);
    EXPECT_TRUE(process.ok()) << process.status();
    const absl::StatusOr<int> exit = process->Wait(absl::Seconds(60));
    EXPECT_TRUE(exit.ok()) << exit.status();
    return {exit.value_or(-1), ReadFile(log)};
  }

  TempDir directory_;
  int calls_ = 0;
};

TEST_P(ReshardTest, AClusterOfAnotherNumberOfShardsGoesOnWhereTheFirstStopped) {
  const auto [from, to, classes] = GetParam();
  const std::vector<float> centres = TrainAndStop(from, classes);
  const std::vector<CheckpointId> before = IdsBelow(checkpoints());
  ASSERT_EQ(before.size(), 1u);

  ProcessCluster cluster(Options(to, classes), directory_.path());
  ASSERT_TRUE(cluster.StartAll({DirFlag(checkpoints())}).ok());
  {
    auto trainers = Trainers::Open(cluster, kTrainers);
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    ASSERT_EQ(trainers->run().position().step, kStepsBefore);
    EXPECT_EQ(trainers->client().ReadCentres(AllClasses(classes)).value(), centres);

    // What the new shards write back at the same step, momentum included.
    const auto [exit, output] = Ctl({absl::StrCat("--address=", cluster.address(0)), "checkpoint"});
    ASSERT_EQ(exit, 0) << output;
    const std::vector<CheckpointId> after = IdsBelow(checkpoints());
    ASSERT_EQ(after.size(), 2u);
    EXPECT_EQ(after.back().step, kStepsBefore);
    const std::vector<float> expected = StateOf(checkpoints(), before.front());
    const std::vector<float> got = StateOf(checkpoints(), after.back());
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
    EXPECT_TRUE(std::any_of(got.begin() + got.size() / 2, got.end(), [](float v) { return v != 0; }));

    for (const double expected_loss : StraightRun(to, classes)) {
      EXPECT_NEAR(TrainOneStep(*trainers, classes), expected_loss, 1e-5 * expected_loss);
    }
  }
  const absl::Status stopped = cluster.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

INSTANTIATE_TEST_SUITE_P(Shards, ReshardTest,
                         ::testing::Values(Change{1, 8, 53}, Change{8, 3, 53}, Change{3, 1, 53},
                                           Change{5, 2, 53}, Change{2, 5, 3}, Change{5, 2, 3}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.from, "To", info.param.to, "Of",
                                               info.param.num_classes);
                         });

using ReshardFilesTest = ReshardTest;

TEST_F(ReshardFilesTest, ACopyMadeOfflineIsResumedByTheNewNumberOfShards) {
  constexpr int kClasses = 53;
  const std::vector<float> centres = TrainAndStop(3, kClasses);
  const fs::path copy = directory_.path() / "copy";
  const std::vector<std::string> command = {"reshard",  "--from", checkpoints(), "--to", copy,
                                            "--shards", "2"};
  const auto [exit, output] = Ctl(command);
  ASSERT_EQ(exit, 0) << output;
  EXPECT_THAT(output, AllOf(HasSubstr("of 3 shards, 53 classes"), HasSubstr("part 2 of 2")));
  const std::vector<CheckpointId> ids = IdsBelow(copy);
  EXPECT_EQ(ids, IdsBelow(checkpoints()));
  const auto [again, refusal] = Ctl(command);
  EXPECT_EQ(again, 3);
  EXPECT_THAT(refusal, HasSubstr("ALREADY_EXISTS"));

  ProcessCluster cluster(Options(2, kClasses), directory_.path());
  ASSERT_TRUE(cluster.StartAll({DirFlag(copy)}).ok());
  {
    auto trainers = Trainers::Open(cluster, kTrainers);
    ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
    EXPECT_EQ(trainers->run().position().step, kStepsBefore);
    EXPECT_EQ(trainers->client().ReadCentres(AllClasses(kClasses)).value(), centres);
  }
  const absl::Status stopped = cluster.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

TEST_F(ReshardFilesTest, WhereAPartIsMissingOrDamagedNothingBeginsAnewUnlessToldTo) {
  constexpr int kClasses = 53;
  TrainAndStop(3, kClasses);
  const fs::path folder = checkpoints() / PartFolderName(1, 3);
  const fs::path away = directory_.path() / "away";
  fs::rename(folder, away);
  for (const int num_shards : {1, 2}) {
    ProcessCluster cluster(Options(num_shards, kClasses), directory_.path());
    fs::remove(directory_.path() / "shard-0.log");
    ASSERT_TRUE(cluster.StartAll({DirFlag(checkpoints())}).ok());
    const absl::StatusOr<int> exit = cluster.shard(0).Wait(absl::Seconds(30));
    ASSERT_TRUE(exit.ok()) << cluster.logs();
    EXPECT_EQ(*exit, 2);
    EXPECT_THAT(cluster.log(0),
                AllOf(HasSubstr(folder.string() + " is missing"), HasSubstr("--resume=none")));
  }

  // A damaged file likewise, with its name.
  fs::rename(away, folder);
  fs::path table;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".sst") table = entry.path();
  }
  fs::resize_file(table, fs::file_size(table) - 1);
  ProcessCluster cluster(Options(1, kClasses), directory_.path());
  ASSERT_TRUE(cluster.StartAll({DirFlag(checkpoints())}).ok());
  const absl::StatusOr<int> exit = cluster.shard(0).Wait(absl::Seconds(30));
  ASSERT_TRUE(exit.ok()) << cluster.logs();
  EXPECT_EQ(*exit, 2);
  EXPECT_THAT(cluster.log(0), HasSubstr(table.string()));

  ASSERT_TRUE(cluster.StartAll({DirFlag(checkpoints()), "--resume=none"}).ok());
  auto trainers = Trainers::Open(cluster, kTrainers);
  ASSERT_TRUE(trainers.ok()) << trainers.status() << cluster.logs();
  EXPECT_EQ(trainers->run().position().step, 0);
}

TEST_F(ReshardFilesTest, CcsctlFindsTheServerOnPathAndSaysWhatIsMissingOtherwise) {
  const fs::path alone = directory_.path() / "bin" / "ccsctl";
  fs::create_directory(alone.parent_path());
  fs::copy_file(CCSCTL_BINARY, alone);
  const auto run = [&](const std::string& path) {
    const fs::path log = directory_.path() / absl::StrCat("alone-", calls_++);
    absl::StatusOr<Process> process =
        Process::Start({"/usr/bin/env", "PATH=" + path, alone, "reshard", "--help"}, log);
    EXPECT_TRUE(process.ok()) << process.status();
    const int exit = process->Wait(absl::Seconds(30)).value_or(-1);
    return std::pair(exit, ReadFile(log));
  };
  const auto [missing, refusal] = run("/nowhere");
  EXPECT_EQ(missing, 1);
  EXPECT_THAT(refusal, HasSubstr((alone.parent_path() / "ccs-server").string() + " nor on PATH"));
  const auto [found, help] = run(fs::path(CCS_SERVER_BINARY).parent_path());
  EXPECT_EQ(found, 0);
  EXPECT_THAT(help, HasSubstr("--shards"));
}

}  // namespace
}  // namespace ccs::testing
