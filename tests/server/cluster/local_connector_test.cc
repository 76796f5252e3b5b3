// Members and their coordinator in one process; everything here is visible to the thread sanitizer.
#include "server/cluster/local_connector.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "server/cluster/coordinator_ticker.h"
#include "tests/server/cluster/member_rig.h"

namespace ccs {
namespace {

class LocalClusterTest : public testing::Test {
 protected:
  static CoordinatorOptions Options() {
    CoordinatorOptions options;
    options.spec = MemberRig::Spec();
    options.version = "1.0";
    return options;
  }
  Coordinator coordinator_{Options()};
  CoordinatorTicker ticker_{&coordinator_};
  LocalConnector connector_{&coordinator_};
};

TEST_F(LocalClusterTest, AMemberFormsServesAndDrains) {
  MemberRig rig(MemberRig::Options(), &connector_);
  ASSERT_TRUE(Eventually([&] { return rig.member.serving(); }));
  EXPECT_EQ(rig.member.layout().shards(0).num_classes(), 10);
  EXPECT_TRUE(rig.member.Drain("the test is over").ok());
  EXPECT_TRUE(rig.member.Wait().ok());
}

TEST_F(LocalClusterTest, ManyProposalsFromManyThreadsAreEachAnsweredOnce) {
  MemberRig rig(MemberRig::Options(), &connector_);
  ASSERT_TRUE(Eventually([&] { return rig.member.serving(); }));
  constexpr int kThreads = 4;
  constexpr int kEach = 25;
  std::atomic<int> answers = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&rig, &answers, thread] {
      for (int i = 0; i < kEach; ++i) {
        v1::Propose proposal;
        proposal.mutable_open_run()->set_run_id("run");
        proposal.mutable_open_run()->set_trainer_rank(thread);
        proposal.mutable_open_run()->set_num_trainers(kThreads);
        proposal.mutable_open_run()->set_start_nonce(1 + i);
        rig.member.Propose(proposal, [&answers](const absl::StatusOr<v1::Result>& result) {
          EXPECT_TRUE(result.ok()) << result.status();
          ++answers;
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return answers == kThreads * kEach; }));
}

TEST_F(LocalClusterTest, AMemberThatStopsMakesRoomForTheNext) {
  for (int life = 0; life < 3; ++life) {
    MemberOptions options = MemberRig::Options();
    options.registration.set_process_nonce(100 + life);
    MemberRig rig(options, &connector_);
    ASSERT_TRUE(Eventually([&] { return rig.member.serving(); })) << life;
  }
}

TEST_F(LocalClusterTest, AnotherSpecIsRefusedForGood) {
  MemberOptions options = MemberRig::Options();
  options.registration.mutable_spec()->set_dim(8);
  MemberRig rig(options, &connector_);
  EXPECT_EQ(rig.member.Wait().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ccs
