#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/version.h"

namespace ccs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "ccs-server");
  return ParseCommandLine(static_cast<int>(flags.size()), flags.data());
}

ServerOptions Valid() {
  ServerOptions options;
  options.model = "model.textproto";
  return options;
}

TEST(OptionsTest, FlagsFillTheStruct) {
  const absl::StatusOr<CommandLine> line = Parse({"--rank=1",
                                                  "--num_shards=3",
                                                  "--coordinator=head:9001",
                                                  "--listen=127.0.0.1:9002",
                                                  "--advertise=b:9002",
                                                  "--metrics=off",
                                                  "--collective_host=b",
                                                  "--allow_plaintext",
                                                  "--model=m",
                                                  "--checkpoint_dir=/c",
                                                  "--checkpoint_every=100",
                                                  "--keep_checkpoints=5",
                                                  "--resume=400",
                                                  "--device=cpu",
                                                  "--threads=2",
                                                  "--memory_limit_bytes=10",
                                                  "--max_message_bytes=11",
                                                  "--max_staged_bytes=12",
                                                  "--step_timeout_ms=13",
                                                  "--collective_timeout_ms=14",
                                                  "--heartbeat_interval_ms=15",
                                                  "--heartbeat_timeout_ms=16",
                                                  "--drain_timeout_ms=17",
                                                  "--log_level=debug",
                                                  "--replay_samples=/r"});
  ASSERT_TRUE(line.ok()) << line.status();
  const ServerOptions& o = line->options;
  EXPECT_EQ(o.rank, 1);
  EXPECT_EQ(o.num_shards, 3);
  EXPECT_EQ(o.coordinator, "head:9001");
  EXPECT_EQ(o.listen, "127.0.0.1:9002");
  EXPECT_EQ(o.advertise, "b:9002");
  EXPECT_EQ(o.metrics, "off");
  EXPECT_EQ(o.collective_host, "b");
  EXPECT_TRUE(o.allow_plaintext);
  EXPECT_EQ(o.model, "m");
  EXPECT_EQ(o.checkpoint_dir, "/c");
  EXPECT_EQ(o.checkpoint_every, 100);
  EXPECT_EQ(o.keep_checkpoints, 5);
  EXPECT_EQ(o.resume, "400");
  EXPECT_EQ(o.device, "cpu");
  EXPECT_EQ(o.threads, 2);
  EXPECT_EQ(o.memory_limit_bytes, 10);
  EXPECT_EQ(o.max_message_bytes, 11);
  EXPECT_EQ(o.max_staged_bytes, 12);
  EXPECT_EQ(o.step_timeout_ms, 13);
  EXPECT_EQ(o.collective_timeout_ms, 14);
  EXPECT_EQ(o.heartbeat_interval_ms, 15);
  EXPECT_EQ(o.heartbeat_timeout_ms, 16);
  EXPECT_EQ(o.drain_timeout_ms, 17);
  EXPECT_EQ(o.log_level, "debug");
  EXPECT_EQ(o.replay_samples, "/r");
}

TEST(OptionsTest, AConfigFileFillsTheStructAndFlagsGoFirst) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/ccs-server.ini");
  std::ofstream(path) << "num_shards=4\nrank=2\nmodel=\"from-file\"\n";
  const std::string flag = absl::StrCat("--config=", path);
  const absl::StatusOr<CommandLine> line = Parse({flag.c_str(), "--rank=3"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.num_shards, 4);
  EXPECT_EQ(line->options.rank, 3);
  EXPECT_EQ(line->options.model, "from-file");
}

TEST(OptionsTest, AnUnknownFlagOrAWordThatIsNoNumberIsNamed) {
  EXPECT_THAT(std::string(Parse({"--shards=2"}).status().message()), HasSubstr("--shards"));
  EXPECT_THAT(std::string(Parse({"--rank=first"}).status().message()), HasSubstr("rank"));
}

TEST(OptionsTest, HelpIsGroupedAndNamesDefaults) {
  const absl::StatusOr<CommandLine> line = Parse({"--help"});
  ASSERT_TRUE(line.ok());
  for (const char* text : {"Group:", "Addresses (host:port", "Model and state:", "Resources:", "Time:",
                           "--checkpoint_dir", "127.0.0.1:8002", "60000"}) {
    EXPECT_THAT(line->text, HasSubstr(text));
  }
}

TEST(OptionsTest, VersionNamesTheBuild) {
  const absl::StatusOr<CommandLine> line = Parse({"--version"});
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->text, absl::StrCat("ccs-server ", kVersion, "\n"));
  EXPECT_THAT(std::string(kVersion), StartsWith("0."));
}

TEST(OptionsTest, DefaultsWithAModelAreValid) { EXPECT_EQ(ValidateOptions(Valid()), absl::OkStatus()); }

struct Refusal {
  std::function<void(ServerOptions&)> spoil;
  const char* message;
};

TEST(OptionsTest, EveryRefusalNamesFlagAndValue) {
  const std::vector<Refusal> refusals = {
      {[](auto& o) { o.num_shards = 0; }, "--num_shards=0: must be at least 1"},
      {[](auto& o) { o.rank = 1; }, "--rank=1: must be in [0, 1), --num_shards"},
      {[](auto& o) { o.rank = -1; }, "--rank=-1"},
      {[](auto& o) { o.rank = 1, o.num_shards = 2, o.coordinator = "head"; }, "--coordinator=head"},
      {[](auto& o) { o.listen = "127.0.0.1"; }, "--listen=127.0.0.1: must be host:port"},
      {[](auto& o) { o.listen = "127.0.0.1:65536"; }, "--listen=127.0.0.1:65536"},
      {[](auto& o) { o.listen = "::1:80"; }, "--listen=::1:80"},
      {[](auto& o) { o.metrics = "on"; }, "--metrics=on"},
      {[](auto& o) { o.advertise = "b:x"; }, "--advertise=b:x"},
      {[](auto& o) { o.listen = "10.0.0.1:8001"; }, "add --allow_plaintext"},
      {[](auto& o) { o.listen = "0.0.0.0:8001", o.allow_plaintext = true; }, "--advertise"},
      {[](auto& o) { o.model = ""; }, "--model is required"},
      {[](auto& o) { o.checkpoint_every = -1; }, "--checkpoint_every=-1: must be at least 0"},
      {[](auto& o) { o.checkpoint_every = 5; }, "--checkpoint_every=5: needs --checkpoint_dir"},
      {[](auto& o) { o.checkpoint_mirror = "/m"; }, "--checkpoint_mirror=/m: needs --checkpoint_dir"},
      {[](auto& o) { o.checkpoint_dir = o.checkpoint_mirror = "/m"; },
       "--checkpoint_mirror=/m: must be another place than --checkpoint_dir"},
      {[](auto& o) { o.checkpoint_staging_bytes = -1; }, "--checkpoint_staging_bytes=-1: must be at least 0"},
      {[](auto& o) { o.keep_checkpoints = 0; }, "--keep_checkpoints=0: must be at least 1"},
      {[](auto& o) { o.resume = "newest"; }, "--resume=newest: must be latest, none or a step"},
      {[](auto& o) { o.resume = "-3"; }, "--resume=-3"},
      {[](auto& o) { o.resume = "40"; }, "--resume=40: needs --checkpoint_dir"},
      {[](auto& o) { o.device = "cuda"; }, "--device=cuda: this build has only cpu"},
      {[](auto& o) { o.threads = -1; }, "--threads=-1"},
      {[](auto& o) { o.memory_limit_bytes = -1; }, "--memory_limit_bytes=-1"},
      {[](auto& o) { o.max_staged_bytes = -1; }, "--max_staged_bytes=-1"},
      {[](auto& o) { o.max_message_bytes = int64_t{1} << 31; }, "--max_message_bytes=2147483648"},
      {[](auto& o) { o.step_timeout_ms = 0; }, "--step_timeout_ms=0: must be at least 1"},
      {[](auto& o) { o.collective_timeout_ms = 0; }, "--collective_timeout_ms=0"},
      {[](auto& o) { o.heartbeat_interval_ms = 0; }, "--heartbeat_interval_ms=0"},
      {[](auto& o) { o.heartbeat_timeout_ms = 1500; }, "--heartbeat_timeout_ms=1500: must be at least twice"},
      {[](auto& o) { o.drain_timeout_ms = 0; }, "--drain_timeout_ms=0"},
      {[](auto& o) { o.log_level = "loud"; }, "--log_level=loud"},
  };
  for (const Refusal& refusal : refusals) {
    ServerOptions options = Valid();
    refusal.spoil(options);
    const absl::Status status = ValidateOptions(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.message));
  }
}

TEST(OptionsTest, WhatIsAlmostRefusedIsAccepted) {
  ServerOptions options = Valid();
  options.listen = "[::1]:0";
  options.checkpoint_dir = "c";
  options.checkpoint_every = 1;
  options.resume = "0";
  options.metrics = "0.0.0.0:0";
  EXPECT_EQ(ValidateOptions(options), absl::OkStatus());
  options.listen = "0.0.0.0:8001";
  options.advertise = "10.0.0.1:8001";
  options.allow_plaintext = true;
  EXPECT_EQ(ValidateOptions(options), absl::OkStatus());
}

TEST(OptionsTest, HostAndPortAreTakenApart) {
  EXPECT_EQ(ParseHostPort("host:80")->host, "host");
  EXPECT_EQ(ParseHostPort("host:80")->port, 80);
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "[::1]");
  for (const char* bad : {"", "host", ":80", "host:", "host:-1", "host:65536", "::1:80"}) {
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace ccs
