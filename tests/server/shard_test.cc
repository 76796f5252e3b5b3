// One shard server in this process, on free ports.
#include "server/shard.h"

#include <ccs/v1/training.grpc.pb.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ccs {
namespace {

using ::testing::HasSubstr;

// Asks grpc.health.v1.Health, whose messages are one field each: the raw reply, "\x08\x01" for SERVING and
// "\x08\x02" for NOT_SERVING, or the name of the error.
std::string AskHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(service.empty() ? ""
                                          : absl::StrCat("\x0a", std::string(1, service.size()), service));
  auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  if (!status.ok()) return status.error_message();
  grpc::Slice bytes;
  return reply.TrySingleSlice(&bytes).ok() ? std::string(bytes.begin(), bytes.end()) : "more than one slice";
}

class ShardTest : public ::testing::Test {
 protected:
  ShardTest()
      : directory_(
            std::filesystem::path(::testing::TempDir()) /
            absl::StrCat("ccs-shard-", ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    options_.model = directory_ / "model.textproto";
    std::ofstream(options_.model) << "num_classes: 10 dim: 4 max_batch: 8 head { cosface {} }";
    options_.listen = "127.0.0.1:0";
    options_.metrics = "off";  // its HTTP server takes two seconds to stop
    options_.checkpoint_dir = directory_ / "checkpoints";
    options_.threads = 1;
  }
  ~ShardTest() override { std::filesystem::remove_all(directory_); }

  // A shard that serves, or null.
  std::unique_ptr<Shard> StartServing() const {
    absl::StatusOr<std::unique_ptr<Shard>> shard = Shard::Start(options_);
    EXPECT_TRUE(shard.ok()) << shard.status();
    if (!shard.ok()) return nullptr;
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!(*shard)->serving() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
    EXPECT_TRUE((*shard)->serving());
    return *std::move(shard);
  }

  static std::shared_ptr<grpc::Channel> ChannelTo(const Shard& shard) {
    return grpc::CreateChannel(shard.address(), grpc::InsecureChannelCredentials());
  }

  // Opens a run and applies one step without rows.
  static grpc::Status OneStep(const Shard& shard) {
    const auto stub = v1::Training::NewStub(ChannelTo(shard));
    v1::OpenRunRequest open;
    open.set_run_id("run");
    open.set_num_trainers(1);
    open.set_start_nonce(5);
    v1::OpenRunReply opened;
    grpc::ClientContext open_context;
    const grpc::Status status = stub->OpenRun(&open_context, open, &opened);
    if (!status.ok()) return status;
    v1::StepRequest step;
    step.set_run_id("run");
    step.set_incarnation(opened.incarnation());
    step.set_lineage(opened.position().lineage());
    step.set_step(opened.position().step() + 1);
    v1::StepReply reply;
    grpc::ClientContext step_context;
    return stub->Step(&step_context, step, &reply);
  }

  static int64_t StepOf(const Shard& shard) {
    v1::DescribeReply reply;
    grpc::ClientContext context;
    const grpc::Status status = v1::Training::NewStub(ChannelTo(shard))->Describe(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.position().step();
  }

  std::filesystem::path directory_;
  ServerOptions options_;
};

TEST_F(ShardTest, HealthFollowsWhetherTheGroupServes) {
  const std::unique_ptr<Shard> shard = StartServing();
  ASSERT_NE(shard, nullptr);
  const auto channel = ChannelTo(*shard);
  EXPECT_EQ(AskHealth(channel, ""), "\x08\x02");
  EXPECT_EQ(AskHealth(channel, "ccs.v1.Admin"), "\x08\x01");
  shard->UpdateHealth();
  EXPECT_EQ(AskHealth(channel, ""), "\x08\x01");
  EXPECT_EQ(AskHealth(channel, "ccs.v1.Training"), "\x08\x01");
  EXPECT_EQ(shard->Drain("the test is over"), absl::OkStatus());
  EXPECT_EQ(AskHealth(channel, ""), "\x08\x02");
  EXPECT_EQ(AskHealth(channel, "ccs.v1.Admin"), "\x08\x01");
  EXPECT_EQ(shard->WaitUntilStopped(), absl::OkStatus());
}

TEST_F(ShardTest, ADrainedShardGoesOnWhereItStopped) {
  {
    const std::unique_ptr<Shard> shard = StartServing();
    ASSERT_NE(shard, nullptr);
    const grpc::Status stepped = OneStep(*shard);
    ASSERT_TRUE(stepped.ok()) << stepped.error_message();
    EXPECT_EQ(shard->Drain("the test stops it"), absl::OkStatus());
  }
  const std::unique_ptr<Shard> shard = StartServing();
  ASSERT_NE(shard, nullptr);
  EXPECT_EQ(StepOf(*shard), 1);
}

TEST_F(ShardTest, ResumeNoneBeginsAnew) {
  {
    const std::unique_ptr<Shard> shard = StartServing();
    ASSERT_NE(shard, nullptr);
    ASSERT_TRUE(OneStep(*shard).ok());
    EXPECT_EQ(shard->Drain("the test stops it"), absl::OkStatus());
  }
  options_.resume = "none";
  const std::unique_ptr<Shard> shard = StartServing();
  ASSERT_NE(shard, nullptr);
  EXPECT_EQ(StepOf(*shard), 0);
}

TEST_F(ShardTest, AResumeStepThatIsNotThereIsRefused) {
  options_.resume = "7";
  const absl::StatusOr<std::unique_ptr<Shard>> shard = Shard::Start(options_);
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ((*shard)->WaitUntilStopped().code(), absl::StatusCode::kNotFound);
}

TEST_F(ShardTest, WhatDoesNotFitIntoMemoryIsRefusedBeforeItIsAllocated) {
  options_.memory_limit_bytes = 1000;
  const absl::Status status = Shard::Start(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--memory_limit_bytes allows 1000 bytes"));

  options_.memory_limit_bytes = 0;
  std::ofstream(options_.model) << "num_classes: 1000000000000 dim: 4";
  EXPECT_EQ(Shard::Start(options_).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ShardTest, AMissingModelIsNamed) {
  options_.model = directory_ / "none.textproto";
  const absl::Status status = Shard::Start(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none.textproto"));
}

TEST_F(ShardTest, ATakenPortIsNamed) {
  const std::unique_ptr<Shard> shard = StartServing();
  ASSERT_NE(shard, nullptr);
  options_.listen = shard->address();
  const absl::Status status = Shard::Start(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(options_.listen));
}

TEST_F(ShardTest, AMessageOverTheLimitIsRefused) {
  options_.max_message_bytes = 1000;
  const std::unique_ptr<Shard> shard = StartServing();
  ASSERT_NE(shard, nullptr);
  v1::StepRequest step;
  step.mutable_features()->set_data(std::string(2000, 'x'));
  v1::StepReply reply;
  grpc::ClientContext context;
  EXPECT_EQ(v1::Training::NewStub(ChannelTo(*shard))->Step(&context, step, &reply).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace ccs
