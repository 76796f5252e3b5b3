// The real binary against fake shards: what it prints and how it exits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/ctl/checkpoint_name.h"
#include "tests/client/fake_cluster.h"

namespace ccs::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Outcome {
  int exit_code = -1;
  std::string output;  // both streams
};

Outcome Ccsctl(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe = popen((std::string(CCSCTL) + " " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t size; (size = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), size);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

class CcsctlTest : public testing::Test {
 protected:
  CcsctlTest() : cluster_(2, 30, 2) {
    ccs::v1::StatusReply& status = cluster_.status();
    status.set_state(ccs::v1::SERVING);
    status.mutable_position()->set_lineage(kLineage);
    status.mutable_position()->set_step(1234);
    status.mutable_spec()->set_num_classes(30);
    status.mutable_spec()->set_dim(2);
    status.set_loss(3.25);
    status.set_version("0.1.0");
    status.mutable_run()->set_run_id("glyphs");
    status.mutable_run()->set_num_trainers(2);
    status.mutable_run()->add_open_trainers(1);
    ccs::v1::CheckpointInfo* last = status.mutable_last_checkpoint();
    last->mutable_id()->set_lineage(kLineage);
    last->mutable_id()->set_step(1200);
    last->mutable_id()->set_nonce(0xab);
    last->set_bytes(1536);
    last->set_created_unix_s(86400);
    for (int rank = 0; rank < 2; ++rank) {
      ccs::v1::ShardStatus* shard = status.add_shards();
      shard->mutable_info()->set_rank(rank);
      shard->mutable_info()->set_address("host-" + std::to_string(rank) + ":8001");
      shard->mutable_info()->set_class_start(15 * rank);
      shard->mutable_info()->set_num_classes(15);
      shard->set_connected(rank == 0);
      shard->set_device("cpu");
      shard->set_step(1234);
      shard->set_state_bytes(int64_t{3} << 29);
      shard->set_heartbeat_age_s(0.25);
      shard->set_activity("pass 2");
    }
  }

  Outcome Ask(const std::string& arguments) {
    return Ccsctl("--address=" + cluster_.address(0) + " " + arguments);
  }

  FakeCluster cluster_;
};

constexpr char kCheckpoint[] = "18364758544493064720-1200-00000000000000ab";

TEST_F(CcsctlTest, StatusIsATable) {
  const Outcome outcome = Ask("status");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output,
            "state       SERVING\n"
            "position    step 1234 of lineage 18364758544493064720\n"
            "model       30 classes of width 2\n"
            "run         glyphs, trainers 1 of 2 open\n"
            "loss        3.25\n"
            "checkpoint  18364758544493064720-1200-00000000000000ab, 1.5 KiB, 1970-01-02 00:00:00Z\n"
            "version     0.1.0\n"
            "\n"
            "RANK  ADDRESS      DEVICE  CLASSES  STEP    STATE  HEARTBEAT  ACTIVITY\n"
            "   0  host-0:8001  cpu       0..14  1234  1.5 GiB      0.2 s  pass 2\n"
            "   1  host-1:8001  cpu      15..29  1234  1.5 GiB      0.2 s  not connected\n");
}

TEST_F(CcsctlTest, StatusIsJson) {
  const Outcome outcome = Ask("status --format=json");
  EXPECT_EQ(outcome.exit_code, 0);
  const Json json = Json::parse(outcome.output);
  EXPECT_EQ(json["state"], "SERVING");
  EXPECT_EQ(json["position"]["lineage"], "18364758544493064720");
  EXPECT_EQ(json["position"]["step"], 1234);
  EXPECT_EQ(json["run"]["run_id"], "glyphs");
  EXPECT_EQ(json["run"]["open_trainers"], Json({1}));
  EXPECT_EQ(json["loss"], 3.25);
  EXPECT_EQ(json["last_checkpoint"]["id"], kCheckpoint);
  ASSERT_EQ(json["shards"].size(), 2u);
  EXPECT_EQ(json["shards"][1]["class_start"], 15);
  EXPECT_EQ(json["shards"][1]["state_bytes"], int64_t{3} << 29);
  EXPECT_EQ(json["shards"][1]["connected"], false);
}

TEST_F(CcsctlTest, StatusOfAClusterWithoutRunOrCheckpoint) {
  cluster_.status().clear_run();
  cluster_.status().clear_last_checkpoint();
  cluster_.status().set_state(ccs::v1::FORMING);
  cluster_.status().set_state_detail("waiting for rank 1");
  EXPECT_THAT(Ask("status").output, AllOf(HasSubstr("state       FORMING, waiting for rank 1\n"),
                                          HasSubstr("run         none\n"), HasSubstr("checkpoint  none\n")));
  const Json json = Json::parse(Ask("status --format=json").output);
  EXPECT_TRUE(json["run"].is_null());
  EXPECT_TRUE(json["last_checkpoint"].is_null());
}

TEST_F(CcsctlTest, CheckpointPrintsIdAndSize) {
  const Outcome outcome = Ask("checkpoint");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output, std::string(kCheckpoint) + "  1.5 KiB\n");
  EXPECT_EQ(cluster_.requests(0, "Checkpoint").size(), 1u);
  EXPECT_EQ(Json::parse(Ask("checkpoint --format=json").output)["bytes"], 1536);
}

TEST_F(CcsctlTest, ListShowsCheckpoints) {
  const Outcome outcome = Ask("list");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("CHECKPOINT"), HasSubstr(kCheckpoint), HasSubstr("1.5 KiB"),
                                    HasSubstr("1970-01-02 00:00:00Z"), HasSubstr("until released"),
                                    HasSubstr("A run can resume from: step 0, 11 to 12\n")));
  const Json json = Json::parse(Ask("list --format=json").output);
  EXPECT_EQ(json["checkpoints"][0]["id"], kCheckpoint);
  EXPECT_EQ(json["checkpoints"][0]["kept"], true);
  EXPECT_EQ(json["window"][1], (Json{{"first_step", 11}, {"last_step", 12}}));
}

TEST_F(CcsctlTest, ReleaseNamesTheCheckpoint) {
  const Outcome outcome = Ask(std::string("release ") + kCheckpoint);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output, std::string("checkpoint ") + kCheckpoint + " is released\n");
  const auto requests = cluster_.Requests<ccs::v1::ReleaseCheckpointRequest>(0, "ReleaseCheckpoint");
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(CheckpointName(requests[0].id()), kCheckpoint);
  EXPECT_EQ(Ask("release 7-12").exit_code, 1) << "half a name";
}

TEST_F(CcsctlTest, CentresAreCsvOrJson) {
  const Outcome csv = Ask("centres --ids 2,20-21");
  EXPECT_EQ(csv.exit_code, 0);
  EXPECT_EQ(csv.output, "2,2,2\n20,20,20\n21,21,21\n");
  const Json json = Json::parse(Ask("centres --ids 2,20-21 --format=json").output);
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[1], (Json{{"class_id", 20}, {"centre", {20.0, 20.0}}}));
}

TEST_F(CcsctlTest, NearestOfClassesAsksForTheirOwnCentres) {
  const Outcome outcome = Ask("nearest --class 3,20 --k 2");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output,
            "QUERY     PLACE  CLASS    COSINE\n"
            "class 3       1      0  1.000000\n"
            "class 3       2      1  0.500000\n"
            "class 20      1     10  1.000000\n"
            "class 20      2     11  0.500000\n");
  const auto requests = cluster_.Requests<ccs::v1::NearestRequest>(0, "Nearest");
  ASSERT_EQ(requests.size(), 1u);
  const float expected[] = {3, 3, 20, 20};
  EXPECT_EQ(requests[0].queries().data(),
            std::string(reinterpret_cast<const char*>(expected), sizeof expected));
}

TEST_F(CcsctlTest, NearestOfAFileAsksForItsRows) {
  const std::string path = testing::TempDir() + "/ccsctl_test_" + std::to_string(getpid()) + ".npy";
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }\n";
  const float row[] = {0.5f, -0.5f};
  std::ofstream(path, std::ios::binary)
      << std::string("\x93NUMPY\x01\x00", 8) << static_cast<char>(header.size()) << '\0' << header
      << std::string(reinterpret_cast<const char*>(row), sizeof row);
  const Outcome outcome = Ask("nearest --query-file " + path + " --k=1 --format=json");
  std::filesystem::remove(path);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const Json json = Json::parse(outcome.output);
  EXPECT_EQ(json[0]["query"], "row 0");
  EXPECT_EQ(json[0]["neighbours"][0], (Json{{"class_id", 0}, {"cosine", 1.0}}));
  EXPECT_EQ(cluster_.Requests<ccs::v1::NearestRequest>(0, "Nearest")[0].queries().data(),
            std::string(reinterpret_cast<const char*>(row), sizeof row));
}

TEST_F(CcsctlTest, CloseRunNamesTheRun) {
  const Outcome outcome = Ask("close-run glyphs");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output, "run glyphs is closed\n");
  EXPECT_EQ(cluster_.Requests<ccs::v1::CloseRunRequest>(0, "CloseRun")[0].run_id(), "glyphs");
}

TEST_F(CcsctlTest, RefusalsExitWith3AndTheirMessage) {
  cluster_.Fail(0, "Checkpoint", {grpc::RESOURCE_EXHAUSTED, "the disk is full"});
  const Outcome outcome = Ask("checkpoint");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("the disk is full")));
  EXPECT_EQ(Ask("centres --ids 30").exit_code, 3);
}

TEST_F(CcsctlTest, TheSecondAddressIsUsedWhenTheFirstIsAway) {
  const std::string first = cluster_.address(1);
  cluster_.Stop(1);
  const Outcome outcome = Ccsctl("list --address " + first + "," + cluster_.address(0));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST_F(CcsctlTest, NothingListeningExitsWith2WithoutWaiting) {
  const std::string address = cluster_.address(1);
  cluster_.Stop(1);
  for (const std::string command : {"status", "list", "checkpoint", "centres --ids 1", "nearest --class 1"}) {
    const Outcome outcome = Ccsctl(absl::StrCat("--address=", address, " --timeout=600 ", command));
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(address)));
  }
}

TEST_F(CcsctlTest, AShardThatNeverAnswersExitsWith2ByTheTimeout) {
  cluster_.Hang(0, "Status");
  EXPECT_EQ(Ask("--timeout=0.3 status").exit_code, 2);
}

TEST(CcsctlUsage, WrongUsageExitsWith1AndHelpWith0) {
  for (const std::string arguments :
       {"", "unknown", "status --format=xml", "centres", "centres --ids 5-3", "nearest", "nearest --class x",
        "nearest --class 1 --query-file y.npy", "nearest --query-file /nowhere.npy",
        "nearest --class 1 --k 0", "close-run", "status --timeout=-1"}) {
    EXPECT_EQ(Ccsctl(arguments).exit_code, 1) << arguments;
  }
  const Outcome help = Ccsctl("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output,
              AllOf(HasSubstr("Exit codes"), HasSubstr("localhost:8001"), HasSubstr("close-run")));
  EXPECT_EQ(Ccsctl("nearest --help").exit_code, 0);
}

}  // namespace
}  // namespace ccs::client
