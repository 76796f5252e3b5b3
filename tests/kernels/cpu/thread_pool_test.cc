#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>

namespace ccs::kernels {
namespace {

TEST(ThreadPoolTest, RunsEveryUnitOnceForAnyNumberOfThreadsAndUnits) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int units : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> runs(units);
      pool.ParallelFor(units, [&](int64_t unit, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++runs[unit];
      });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPoolTest, NoTwoUnitsShareAWorkerAtATime) {
  ThreadPool pool(4);
  std::atomic<int> busy[4] = {};
  for (int call = 0; call < 200; ++call) {
    pool.ParallelFor(16, [&](int64_t, int worker) {
      EXPECT_EQ(busy[worker].fetch_add(1), 0);
      busy[worker].fetch_sub(1);
    });
  }
}

}  // namespace
}  // namespace ccs::kernels
