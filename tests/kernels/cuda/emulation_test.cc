// That the emulation shows what it is there to show.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cublas_v2.h"
#include "cuda_bf16.h"
#include "cuda_runtime.h"
#include "tests/kernels/cuda/emulation/device.h"

namespace ccs::emulation {
namespace {

constexpr Order kOrders[] = {Order::kForward, Order::kReversed, Order::kShuffled};

// What each thread sees of its neighbour's value in shared memory.
std::vector<unsigned> SeenOfNeighbours(Order order, bool with_barrier) {
  static unsigned shared[64];
  std::fill_n(shared, 64, 0u);
  std::vector<unsigned> seen(64);
  RunGrid(1, 64, order, [&] {
    shared[threadIdx.x] = threadIdx.x + 1;
    if (with_barrier) __syncthreads();
    seen[threadIdx.x] = shared[threadIdx.x ^ 1];
  });
  return seen;
}

TEST(EmulationTest, ABarrierMakesWritesSeenInEveryOrder) {
  for (Order order : kOrders) {
    const auto seen = SeenOfNeighbours(order, true);
    for (unsigned t = 0; t < 64; ++t) EXPECT_EQ(seen[t], (t ^ 1) + 1);
  }
}

TEST(EmulationTest, AMissingBarrierShowsInEveryOrder) {
  for (Order order : kOrders) {
    const auto seen = SeenOfNeighbours(order, false);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 0u), 32);
  }
}

TEST(EmulationTest, OrdersAreWhatTheySay) {
  const auto threads = [](Order order) {
    std::vector<unsigned> ran;
    RunGrid(2, 32, order, [&] { ran.push_back(blockIdx.x * 32 + threadIdx.x); });
    return ran;
  };
  std::vector<unsigned> forward = threads(Order::kForward);
  EXPECT_TRUE(std::is_sorted(forward.begin(), forward.end()));
  const std::vector<unsigned> reversed = threads(Order::kReversed);
  std::vector<unsigned> shuffled = threads(Order::kShuffled);
  EXPECT_NE(shuffled, forward);
  EXPECT_NE(shuffled, reversed);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, forward);
  std::reverse(forward.begin(), forward.end());
  EXPECT_EQ(reversed, forward);
}

TEST(EmulationTest, LanesExchangeValuesAndVotes) {
  for (Order order : kOrders) {
    RunGrid(2, 64, order, [] {
      const unsigned lane = threadIdx.x % 32;
      for (int distance = 16; distance > 0; distance /= 2) {
        EXPECT_EQ(__shfl_xor_sync(~0u, 0.5 * threadIdx.x, distance), 0.5 * (threadIdx.x ^ distance));
      }
      EXPECT_EQ(__ballot_sync(~0u, lane % 3 == 1), 0x92492492u);
      EXPECT_EQ(__ffs(0x40), 7);
    });
  }
}

TEST(EmulationDeathTest, ABarrierThatSomeThreadsPassByEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(RunGrid(1, 64, Order::kForward,
                       [] {
                         if (threadIdx.x != 3) __syncthreads();
                       }),
               "threads wait for others that have returned");
}

TEST(EmulationTest, EmptyAndOddGridsAreRefused) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(Launch(0, 32, stream, [] {}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(1, 33, stream, [] {}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(1, 2048, stream, [] {}), cudaErrorInvalidConfiguration);
  cudaStreamDestroy(stream);
}

TEST(EmulationTest, WorkWaitsUntilItIsAwaitedAndHostMemoryMustBePinned) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  void* device = nullptr;
  void* pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 4), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&pinned, 4, cudaHostAllocDefault), cudaSuccess);
  auto* value = static_cast<unsigned*>(pinned);
  ASSERT_EQ(cudaMemsetAsync(device, 0, 4, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(value, device, 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(*value, 0xffffffffu);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*value, 0u);
  unsigned pageable = 0;
  EXPECT_EQ(cudaMemcpyAsync(&pageable, device, 4, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(value, device, 8, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
  cudaStreamDestroy(stream);
  cudaFreeHost(pinned);
  cudaFree(device);
}

TEST(EmulationTest, BFloat16RoundsToTheNearestEven) {
  EXPECT_EQ(__bfloat162float(__float2bfloat16_rn(1.0f)), 1.0f);
  EXPECT_EQ(__bfloat162float(__float2bfloat16_rn(1.0f + 0x1p-8f)), 1.0f);            // a tie
  EXPECT_EQ(__bfloat162float(__float2bfloat16_rn(1.0f + 0x3p-8f)), 1.0f + 0x1p-6f);  // a tie
  EXPECT_EQ(__bfloat162float(__float2bfloat16_rn(1.0f + 0x1.1p-8f)), 1.0f + 0x1p-7f);
  EXPECT_TRUE(std::isnan(__bfloat162float(__float2bfloat16_rn(NAN))));
}

}  // namespace
}  // namespace ccs::emulation
