// The crash matrix: every fault point x {SIGKILL, SIGSTOP} x {rank 0, another}, trainers killed, stopped and
// replaced, shards killed and stopped at random. With the step log on, every reply, the weights and the
// momentum are those of the run without faults, bit for bit, and the history goes on.
//
// One seed chooses the cases. CCS_CRASH_SEED=SEED in the environment runs the same set again, CCS_CRASH_SEED=
// SEED/CASE one case of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/distributed/crash_case.h"

namespace ccs::testing {
namespace {

using ::testing::IsEmpty;

constexpr int kCases = CCS_CRASH_CASES;
constexpr int kWorkers = 5;  // a case mostly waits, for time-outs and for processes to start
constexpr int64_t kSteps = 20;

struct Point {
  const char* name;
  int first_arrival;
  int last_arrival;  // that every case comes to
  enum { kAnyRank, kRank0, kRestart } where = kAnyRank;
};

// 20 steps, a checkpoint every 5. That of step 20 may be cut short by the end. The log's first two writes
// make it and begin the lineage, before there is anything to lose: a shard that dies there has the lineage
// begin anew.
constexpr Point kPoints[] = {
    {"step/before_ready", 1, 20},
    {"coordinator/go_sent", 1, 20, Point::kRank0},
    {"step/after_go", 1, 20},
    {"log/before_sync", 3, 20},
    {"log/after_sync", 3, 20},
    {"exchange/change", 1, 1},
    {"exchange/features", 1, 20},
    {"exchange/labels", 1, 20},
    {"exchange/partials", 1, 20},
    {"exchange/gradients", 1, 20},
    {"reply/before", 1, 20},
    {"reply/after", 1, 20},
    {"pass2/before", 1, 20},
    {"pass2/after", 1, 20},
    {"checkpoint/block", 1, 9},
    {"checkpoint/before_commit", 1, 3},
    {"checkpoint/after_commit", 1, 3},
    {"checkpoint/before_log_cut", 1, 1},  // later ones may be done together
    {"replay/record", 1, 4, Point::kRestart},
    {"form/before_formed", 1, 1, Point::kRestart},
};

// {shards, trainers}: more shards than trainers, as many, fewer, one.
constexpr std::pair<int, int> kSizes[] = {{2, 2}, {3, 2}, {2, 3}, {3, 1}, {1, 2}};

using Random = std::mt19937_64;

int Below(Random& random, int end) { return static_cast<int>(random() % end); }

Blow TimedBlow(Random& random, int64_t first_step) {
  Blow blow;
  blow.at_step = first_step + Below(random, static_cast<int>(kSteps - 2 - first_step));
  blow.delay_us = Below(random, 15'000);
  return blow;
}

// The `round`th time that the point's turn has come.
void AddPoint(Random& random, const Point& point, int round, CrashPlan* plan) {
  Blow blow;
  const bool other = round % 2 == 1 && point.where != Point::kRank0;
  if (other && plan->shards == 1) plan->shards = 2;
  blow.rank = other ? 1 + Below(random, plan->shards - 1) : 0;
  blow.stop = round / 2 % 2 == 1;
  blow.replace = Below(random, 2) == 1;
  blow.point = point.name;
  blow.arrival = point.first_arrival + Below(random, point.last_arrival - point.first_arrival + 1);
  if (point.where == Point::kRestart) {
    plan->checkpoint_every = 0;  // so that there is something to replay
    Blow first = TimedBlow(random, point.last_arrival);
    first.rank = blow.rank;
    blow.after_restart = true;
    plan->blows.push_back(first);
  }
  plan->blows.push_back(blow);
}

CrashPlan MakePlan(uint64_t seed, int index) {
  Random random(seed * 1'000'003 + index);
  CrashPlan plan;
  std::tie(plan.shards, plan.trainers) = kSizes[Below(random, std::size(kSizes))];
  plan.steps = kSteps;
  constexpr int kCycle = 10;  // seven points, two trainers, one of random shards
  const int in_cycle = index % kCycle;
  if (in_cycle < 7) {
    const int turn = index / kCycle * 7 + in_cycle;
    const int points = static_cast<int>(std::size(kPoints));
    const int round = turn / points + static_cast<int>((seed + turn % points) % 4);
    AddPoint(random, kPoints[turn % points], round, &plan);
  } else if (in_cycle < 9) {
    Blow blow =
        TimedBlow(random, 1);  // when all have opened the run: the last one to open it is the right one
    blow.victim = Blow::Victim::kTrainer;
    blow.rank = Below(random, plan.trainers);
    blow.stop = in_cycle == 8;
    blow.replace = Below(random, 2) == 1;
    plan.blows.push_back(blow);
  } else {
    for (int i = 0; i < 3; ++i) {
      Blow blow = TimedBlow(random, 0);
      blow.rank = Below(random, plan.shards);
      blow.stop = i == 0 && Below(random, 2) == 1;
      blow.replace = Below(random, 2) == 1;
      plan.blows.push_back(blow);
    }
    std::sort(plan.blows.begin(), plan.blows.end(),
              [](const Blow& a, const Blow& b) { return a.at_step < b.at_step; });
  }
  return plan;
}

// Runs without blows, one for each size of cluster, when first asked for.
class Peace {
 public:
  const CrashResult& Of(const CrashPlan& plan) {
    Entry* entry = nullptr;
    {
      std::lock_guard lock(mutex_);
      entry = &entries_[{plan.shards, plan.trainers}];
    }
    std::lock_guard lock(entry->mutex);
    if (!entry->result) {
      CrashPlan quiet = plan;
      quiet.blows.clear();
      entry->result = RunCrashPlan(quiet);
    }
    return *entry->result;
  }

 private:
  struct Entry {
    std::mutex mutex;
    std::optional<CrashResult> result;
  };
  std::mutex mutex_;
  std::map<std::pair<int, int>, Entry> entries_;
};

struct Choice {
  uint64_t seed = 0;
  std::vector<int> cases;
};

Choice Choose() {
  Choice choice;
  choice.seed = std::random_device{}();
  std::optional<int> only;
  if (const char* fixed = std::getenv("CCS_CRASH_SEED")) {
    const std::vector<std::string> parts = absl::StrSplit(fixed, '/');
    EXPECT_TRUE(absl::SimpleAtoi(parts[0], &choice.seed)) << fixed;
    if (parts.size() > 1) {
      only = 0;
      EXPECT_TRUE(absl::SimpleAtoi(parts[1], &*only)) << fixed;
    }
  }
  for (int i = 0; i < kCases; ++i) {
    if (!only || *only == i) choice.cases.push_back(i);
  }
  return choice;
}

TEST(CrashMatrix, WhateverDiesOrStopsEveryBitIsThatOfTheRunWithoutFaults) {
  const Choice choice = Choose();
  std::printf("CCS_CRASH_SEED=%llu\n", static_cast<unsigned long long>(choice.seed));
  std::fflush(stdout);
  Peace peace;
  std::mutex mutex;  // guards what follows
  std::vector<std::string> failures;
  double longest_notice_s = 0;
  std::atomic<size_t> next = 0;
  const absl::Time start = absl::Now();
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&] {
      for (size_t i = next++; i < choice.cases.size(); i = next++) {
        const CrashPlan plan = MakePlan(choice.seed, choice.cases[i]);
        const CrashResult& want = peace.Of(plan);
        CrashResult got = RunCrashPlan(plan);
        std::vector<std::string> wrong = want.problems;
        wrong.insert(wrong.end(), got.problems.begin(), got.problems.end());
        const std::vector<std::string> differences = Differences(got, want);
        wrong.insert(wrong.end(), differences.begin(), differences.end());
        std::lock_guard lock(mutex);
        longest_notice_s = std::max(longest_notice_s, got.longest_notice_s);
        if (wrong.empty()) continue;
        failures.push_back(absl::StrCat("CCS_CRASH_SEED=", choice.seed, "/", choice.cases[i], ": ",
                                        plan.ToString(), "\n", absl::StrJoin(wrong, "\n")));
        std::printf("%s\n", failures.back().c_str());
        std::fflush(stdout);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  std::printf("%zu cases in %.1f s; a stopped shard was noticed after %.2f s at most\n", choice.cases.size(),
              absl::ToDoubleSeconds(absl::Now() - start), longest_notice_s);
  EXPECT_THAT(failures, IsEmpty());
  ASSERT_FALSE(choice.cases.empty());
}

}  // namespace
}  // namespace ccs::testing
