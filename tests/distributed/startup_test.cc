// What a shard server that should not start says, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/process.h"

namespace ccs::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StartupTest : public ::testing::Test {
 protected:
  StartupTest() : port_(FreePort()) {}

  std::string Model(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.path() / name;
    std::ofstream(path) << text;
    return path.string();
  }

  Process Start(const std::string& name, std::vector<std::string> flags) {
    flags.insert(flags.begin(), CCS_SERVER_BINARY);
    flags.push_back("--metrics=off");
    absl::StatusOr<Process> process = Process::Start(flags, directory_.path() / name);
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }

  // Starts a server that should end by itself; returns its exit status and what it printed.
  std::pair<int, std::string> Run(const std::vector<std::string>& flags) {
    Process process = Start("run.log", flags);
    const absl::StatusOr<int> exit = process.Wait(absl::Seconds(30));
    const std::string log = ReadFile(directory_.path() / "run.log");
    EXPECT_TRUE(exit.ok()) << log;
    return {exit.ok() ? *exit : -1, log};
  }

  std::vector<std::string> Rank(int rank, int num_shards, const std::string& model) {
    return {absl::StrCat("--rank=", rank),
            absl::StrCat("--num_shards=", num_shards),
            absl::StrCat("--listen=127.0.0.1:", rank == 0 ? port_ : FreePort()),
            absl::StrCat("--coordinator=127.0.0.1:", port_),
            absl::StrCat("--model=", model),
            "--heartbeat_interval_ms=100",
            "--heartbeat_timeout_ms=1000"};
  }

  TempDir directory_;
  const int port_;
};

TEST_F(StartupTest, RefusesASpecThatDiffersFromTheCoordinatorsAndNamesBothValues) {
  Process first = Start("rank0.log", Rank(0, 2, Model("a", "num_classes: 100 dim: 8 sample_rate: 0.5")));
  const auto [exit, log] = Run(Rank(1, 2, Model("b", "num_classes: 100 dim: 8 sample_rate: 0.25")));
  EXPECT_EQ(exit, 2);
  EXPECT_THAT(log, AllOf(HasSubstr("sample_rate"), HasSubstr("0.5"), HasSubstr("0.25")));
}

TEST_F(StartupTest, RefusesASecondServerOfTheSameRank) {
  const std::string model = Model("a", "num_classes: 100 dim: 8");
  Process first = Start("rank0.log", Rank(0, 3, model));
  Process second = Start("rank1.log", Rank(1, 3, model));
  while (ReadFile(directory_.path() / "rank0.log").find("rank 1 at ") == std::string::npos) {
    ASSERT_TRUE(first.Running() && second.Running());
    absl::SleepFor(absl::Milliseconds(20));
  }
  const auto [exit, log] = Run(Rank(1, 3, model));
  EXPECT_EQ(exit, 2);
  EXPECT_THAT(log, HasSubstr("rank 1 is taken"));
  EXPECT_TRUE(second.Running());
}

TEST_F(StartupTest, RefusesAnotherNumberOfShards) {
  Process first = Start("rank0.log", Rank(0, 2, Model("a", "num_classes: 100 dim: 8")));
  const auto [exit, log] = Run(Rank(1, 3, Model("a", "num_classes: 100 dim: 8")));
  EXPECT_EQ(exit, 2);
  EXPECT_THAT(log, HasSubstr("number of shards differs: the coordinator has 2, rank 1 has 3"));
}

TEST_F(StartupTest, RefusesAModelThatDoesNotFitAndNamesBothNumbers) {
  std::vector<std::string> flags = Rank(0, 1, Model("a", "num_classes: 1000000 dim: 512"));
  flags.push_back("--memory_limit_bytes=1000000000");
  const auto [exit, log] = Run(flags);
  EXPECT_EQ(exit, 2);
  EXPECT_THAT(log, HasSubstr("1000000000"));
}

TEST_F(StartupTest, RefusesABrokenModelFileWithItsPlace) {
  const auto [exit, log] = Run(Rank(0, 1, Model("a", "num_classes: 100\ndimension: 8\n")));
  EXPECT_EQ(exit, 2);
  EXPECT_THAT(log, AllOf(HasSubstr("dimension"), HasSubstr("2")));
}

TEST_F(StartupTest, RefusesPlaintextBeyondLoopbackUnlessAllowed) {
  const auto [exit, log] = Run({"--rank=0", "--num_shards=1", "--listen=0.0.0.0:0",
                                absl::StrCat("--model=", Model("a", "num_classes: 10 dim: 8"))});
  EXPECT_EQ(exit, 1);
  EXPECT_THAT(log, HasSubstr("allow_plaintext"));
}

TEST_F(StartupTest, HelpAndVersionExitCleanly) {
  EXPECT_THAT(Run({"--help"}), ::testing::Pair(0, HasSubstr("--checkpoint_dir")));
}

}  // namespace
}  // namespace ccs::testing
