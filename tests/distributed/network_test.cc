// A run over a bad network: connections that break in the middle of a request, replies that are lost, delays,
// half-open hangs, partitions between shards. Every call returns by its deadline, and every bit is that of
// the run without faults. CCS_NETWORK_SEED=SEED in the environment has the same weather again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tests/distributed/crash_case.h"
#include "tests/distributed/shard_rows.h"
#include "tests/testing/network_namespaces.h"
#include "tests/testing/process_cluster.h"
#include "tests/testing/tcp_proxy.h"

namespace ccs::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kShards = 2;
constexpr int kTrainers = 2;
constexpr int64_t kSteps = 60;
constexpr absl::Duration kSlack = absl::Seconds(1);  // of a busy machine, on top of a deadline

ProcessClusterOptions Options(const std::filesystem::path& directory) {
  return {.server_binary = CCS_SERVER_BINARY,
          .num_shards = kShards,
          .model = CrashModel(),
          .flags = {"--heartbeat_interval_ms=100", "--heartbeat_timeout_ms=1000", "--checkpoint_every=7",
                    absl::StrCat("--checkpoint_dir=", (directory / "checkpoints").string())},
          .threads = 1};
}

const CrashResult& Peace() {
  static const CrashResult peace = RunCrashPlan(
      {.shards = kShards, .trainers = kTrainers, .steps = kSteps, .checkpoint_every = 7, .blows = {}});
  EXPECT_THAT(peace.problems, IsEmpty());
  return peace;
}

uint32_t Seed() {
  uint32_t seed = std::random_device{}();
  if (const char* fixed = std::getenv("CCS_NETWORK_SEED")) {
    EXPECT_TRUE(absl::SimpleAtoi(fixed, &seed));
  }
  return seed;
}

// Trainers as threads of this process.
class Training {
 public:
  Training(std::vector<std::string> addresses, absl::Duration timeout)
      : addresses_(std::move(addresses)), timeout_(timeout), traces_(kTrainers), ends_(kTrainers) {
    for (int rank = 0; rank < kTrainers; ++rank) {
      threads_.emplace_back([this, rank] { ends_[rank] = Train(rank); });
    }
  }
  ~Training() { Join(); }

  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Of trainer 0; kSteps if a trainer has given up.
  int64_t steps() const { return steps_; }
  void AwaitStep(int64_t step) const {
    while (steps_ < step) absl::SleepFor(absl::Milliseconds(1));
  }
  // After Join, with the network whole again.
  CrashResult Result() const {
    CrashResult result;
    for (const absl::Status& end : ends_) {
      if (!end.ok()) result.problems.push_back(end.ToString());
    }
    result.traces = traces_;
    const auto client = client::Client::Connect({.addresses = addresses_, .timeout = timeout_});
    if (!client.ok()) result.problems.push_back(client.status().ToString());
    if (!result.problems.empty()) return result;
    for (const client::Shard& shard : (*client)->info().shards) {
      const auto rows = ReadShardRows(shard.address, shard.class_start, shard.num_classes);
      if (!rows.ok()) {
        result.problems.push_back(rows.status().ToString());
        continue;
      }
      result.lineage = rows->lineage;
      result.weight.insert(result.weight.end(), rows->weight.begin(), rows->weight.end());
      result.momentum.insert(result.momentum.end(), rows->momentum.begin(), rows->momentum.end());
    }
    return result;
  }

 private:
  absl::Status Train(int rank) {
    const absl::Status end = TakeSteps(rank);
    if (!end.ok()) steps_ = kSteps;
    return end;
  }

  absl::Status TakeSteps(int rank) {
    const auto client = client::Client::Connect({.addresses = addresses_, .timeout = timeout_});
    if (!client.ok()) return client.status();
    const auto run = (*client)->OpenRun({.run_id = "net", .trainer_rank = rank, .num_trainers = kTrainers});
    if (!run.ok()) return run.status();
    for (int64_t step = 1; step <= kSteps; ++step) {
      const Rows rows = NextRows(traces_[rank], rank);
      const absl::Time start = absl::Now();
      const auto result = (*run)->Step(
          {.features = rows.features, .labels = rows.labels, .learning_rate = kCrashLearningRate});
      const absl::Duration took = absl::Now() - start;
      if (took > timeout_ + kSlack)
        return absl::InternalError(absl::StrCat("step ", step, " outlasted its deadline"));
      if (!result.ok()) return result.status();
      TraceRecord& record = traces_[rank].emplace_back();
      record.step = result->step;
      record.loss = result->loss;
      std::copy(result->feature_grad.begin(), result->feature_grad.end(), record.gradient.begin());
      if (rank == 0) steps_ = std::max<int64_t>(steps_, step);
    }
    return absl::OkStatus();
  }

  const std::vector<std::string> addresses_;
  const absl::Duration timeout_;
  std::vector<Trace> traces_;
  std::vector<absl::Status> ends_;
  std::atomic<int64_t> steps_ = 0;
  std::vector<std::thread> threads_;
};

// Trainers reach every shard through a proxy of its own.
class NetworkTest : public ::testing::Test {
 protected:
  void StartBehindProxies() {
    cluster_ = std::make_unique<ProcessCluster>(Options(directory_.path()), directory_.path());
    for (int rank = 0; rank < kShards; ++rank) {
      proxies_.push_back(std::make_unique<TcpProxy>(cluster_->port(rank)));
      addresses_.push_back(proxies_.back()->address());
      ASSERT_TRUE(cluster_->StartShard(rank, {absl::StrCat("--advertise=", addresses_.back())}).ok());
    }
  }

  TempDir directory_;
  std::unique_ptr<ProcessCluster> cluster_;
  std::vector<std::unique_ptr<TcpProxy>> proxies_;
  std::vector<std::string> addresses_;
};

TEST_F(NetworkTest, WhateverTheWeatherBetweenTrainersAndShardsEveryBitIsTheSame) {
  const uint32_t seed = Seed();
  SCOPED_TRACE(absl::StrCat("CCS_NETWORK_SEED=", seed));
  std::mt19937 random(seed);
  StartBehindProxies();
  Training training(addresses_, absl::Seconds(30));
  int cuts_wanted = 0;
  for (int64_t step = 2; step < kSteps - 5; step += 3) {
    training.AwaitStep(step);
    absl::SleepFor(absl::Microseconds(random() % 5000));
    TcpProxy& proxy = *proxies_[random() % kShards];
    proxy.SetDelay(absl::ZeroDuration());
    switch (step / 3 % 5) {
      case 0:
        proxy.CutAll();
        ++cuts_wanted;
        break;
      case 1:
        proxy.CutAfter(random() % 1500);  // a request has about 500 bytes
        ++cuts_wanted;
        break;
      case 2:
        proxy.CutNextReply();
        ++cuts_wanted;
        break;
      case 3:
        proxy.SetDelay(absl::Milliseconds(5 + random() % 50));
        break;
      default:
        proxy.Hang(true);
        absl::SleepFor(absl::Milliseconds(100 + random() % 400));
        proxy.Hang(false);
    }
  }
  training.Join();
  EXPECT_THAT(Differences(training.Result(), Peace()), IsEmpty())
      << absl::StrJoin(training.Result().problems, "\n");
  EXPECT_GE(proxies_[0]->cuts() + proxies_[1]->cuts(), cuts_wanted);
}

TEST_F(NetworkTest, EveryCallReturnsByItsDeadlineFromAHalfOpenNetworkAndTheStepIsTakenOnce) {
  StartBehindProxies();
  constexpr absl::Duration kTimeout = absl::Seconds(2);
  auto client = client::Client::Connect({.addresses = addresses_, .timeout = absl::Seconds(30)});
  ASSERT_TRUE(client.ok()) << client.status();
  client = client::Client::Connect({.addresses = addresses_, .timeout = kTimeout});
  ASSERT_TRUE(client.ok()) << client.status();
  const auto run = (*client)->OpenRun({.run_id = "net", .trainer_rank = 0, .num_trainers = 1});
  ASSERT_TRUE(run.ok()) << run.status();
  const Rows rows = NextRows({}, 0);
  const auto step = [&] {
    return (*run)->Step({.features = rows.features, .labels = rows.labels, .learning_rate = 0.1f}).status();
  };
  ASSERT_TRUE(step().ok());
  const std::vector<int64_t> classes = {0};
  const std::vector<float> centre = (*client)->ReadCentres(classes).value();

  for (const auto& proxy : proxies_) proxy->Hang(true);
  const std::vector<std::pair<const char*, std::function<absl::Status()>>> calls = {
      {"Connect",
       [&] { return client::Client::Connect({.addresses = addresses_, .timeout = kTimeout}).status(); }},
      {"OpenRun", [&] { return (*client)->OpenRun({.run_id = "net"}).status(); }},
      {"ReadCentres", [&] { return (*client)->ReadCentres(classes).status(); }},
      {"WriteCentres", [&] { return (*client)->WriteCentres(classes, centre); }},
      {"Evaluate", [&] { return (*client)->Evaluate(rows.features, rows.labels).status(); }},
      {"Nearest", [&] { return (*client)->Nearest(rows.features, 1).status(); }},
      {"Step", step}};
  std::vector<std::thread> threads;
  for (const auto& [name, call] : calls) {
    threads.emplace_back([name = name, &call = call, kTimeout] {
      const absl::Time start = absl::Now();
      const absl::Status status = call();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << name << ": " << status;
      EXPECT_LE(absl::Now() - start, kTimeout + kSlack) << name;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& proxy : proxies_) proxy->Hang(false);
  // What was under way may have been applied; what is called again is not applied twice.
  const auto again = client::Client::Connect({.addresses = addresses_, .timeout = absl::Seconds(30)});
  ASSERT_TRUE(again.ok()) << again.status();
  const auto last = (*again)->OpenRun({.run_id = "net", .last_result = 1});
  ASSERT_TRUE(last.ok()) << last.status();
  const auto result =
      (*last)->Step({.features = rows.features, .labels = rows.labels, .learning_rate = 0.1f});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->step, 2);
  EXPECT_EQ((*last)->position().step, 2);
}

TEST_F(NetworkTest, TheControlStreamMayBreakAndHang) {
  const uint32_t seed = Seed();
  SCOPED_TRACE(absl::StrCat("CCS_NETWORK_SEED=", seed));
  std::mt19937 random(seed);
  ProcessClusterOptions options = Options(directory_.path());
  const int port = FreePort();
  // The proxy's port is needed before the cluster's are known.
  options.coordinator = absl::StrCat("127.0.0.1:", port);
  cluster_ = std::make_unique<ProcessCluster>(options, directory_.path());
  TcpProxy proxy(cluster_->port(0), port);
  ASSERT_TRUE(cluster_->StartAll().ok());
  Training training({cluster_->address(0), cluster_->address(1)}, absl::Seconds(30));
  for (const int64_t step : {5, 15, 25, 35, 45}) {
    training.AwaitStep(step);
    absl::SleepFor(absl::Microseconds(random() % 5000));
    if (step % 2 == 1 && step % 3 != 0) {
      proxy.CutAll();
    } else {
      proxy.Hang(true);
      absl::SleepFor(absl::Milliseconds(1500));  // longer than the heartbeats' time-out
      proxy.Hang(false);
    }
  }
  training.Join();
  EXPECT_THAT(Differences(training.Result(), Peace()), IsEmpty())
      << absl::StrJoin(training.Result().problems, "\n");
  EXPECT_THAT(cluster_->log(0), HasSubstr("rank 1 was silent for"));
  EXPECT_THAT(cluster_->log(1), HasSubstr("the coordinator was silent for"));
}

TEST_F(NetworkTest, APartitionBetweenTwoShardsIsNoticedAndHealsWithEveryBitTheSame) {
  const auto network = NetworkNamespaces::Make(kShards);
  if (!network.ok()) GTEST_SKIP() << "no network namespaces here: " << network.status();
  ProcessClusterOptions options = Options(directory_.path());
  options.flags.push_back("--allow_plaintext");
  for (int rank = 0; rank < kShards; ++rank) {
    options.hosts.push_back((*network)->address(rank));
    options.launchers.push_back((*network)->launcher(rank));
  }
  cluster_ = std::make_unique<ProcessCluster>(options, directory_.path());
  ASSERT_TRUE(cluster_->StartAll().ok());
  Training training({cluster_->address(0), cluster_->address(1)}, absl::Seconds(30));
  for (const int64_t step : {10, 30}) {
    training.AwaitStep(step);
    ASSERT_TRUE((*network)->Partition(true).ok());
    absl::SleepFor(absl::Milliseconds(2500));  // longer than the heartbeats' time-out
    const int64_t stuck = training.steps();
    ASSERT_TRUE((*network)->Partition(false).ok());
    EXPECT_LT(stuck, kSteps) << "no step passes a partition";
  }
  training.Join();
  EXPECT_THAT(Differences(training.Result(), Peace()), IsEmpty())
      << absl::StrJoin(training.Result().problems, "\n");
  EXPECT_THAT(cluster_->log(0), HasSubstr("rank 1 was silent for"));
  EXPECT_THAT(cluster_->log(1), HasSubstr("the coordinator was silent for"));
}

}  // namespace
}  // namespace ccs::testing
