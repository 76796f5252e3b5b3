#include "tests/kernels/cuda/emulation/block.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <boost/context/preallocated.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

ccs::emulation::Index threadIdx;
ccs::emulation::Index blockIdx;
dim3 gridDim;

namespace ccs::emulation {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kWarpSize = 32;
constexpr unsigned kMostThreads = 1024;

struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
};

// The address sanitizer must know which stack is in use. `keep` holds what it knows of the stack left.
void LeaveFor([[maybe_unused]] const Stack& stack, [[maybe_unused]] void** keep) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(keep, stack.bottom, stack.bytes);
#endif
}
void Arrive([[maybe_unused]] void* kept, [[maybe_unused]] Stack* from) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(kept, from == nullptr ? nullptr : &from->bottom,
                                  from == nullptr ? nullptr : &from->bytes);
#endif
}

// Something that all of a group wait for. Each time has a number.
struct Meeting {
  unsigned arrived = 0;
  uint64_t number = 0;
  void Arrive(unsigned group) {
    if (++arrived < group) return;
    arrived = 0;
    ++number;
  }
};

struct Warp {
  Meeting meeting;
  uint64_t bits[2][kWarpSize];  // by the meeting's parity: a lane is at most one ahead of another
};

// A thread of the emulated block. Its fiber lives as long as the process and runs one body after the other.
class Thread {
 public:
  Thread() {
    boost::context::fixedsize_stack allocator(kStackBytes);
    const boost::context::stack_context memory = allocator.allocate();
    stack_ = {static_cast<char*>(memory.sp) - memory.size, memory.size};
    fiber_ = boost::context::fiber(std::allocator_arg,
                                   boost::context::preallocated(memory.sp, memory.size, memory), allocator,
                                   [this](boost::context::fiber&& caller) {
                                     caller_ = std::move(caller);
                                     Arrive(nullptr, &caller_stack_);
                                     for (;;) {
                                       (*body)();
                                       waits_for = nullptr;
                                       done = true;
                                       Yield();
                                     }
                                     return std::move(caller_);
                                   });
  }

  void Resume() {
    void* kept = nullptr;
    LeaveFor(stack_, &kept);
    fiber_ = std::move(fiber_).resume();
    Arrive(kept, nullptr);
  }
  void Yield() {
    void* kept = nullptr;
    LeaveFor(caller_stack_, &kept);
    caller_ = std::move(caller_).resume();
    Arrive(kept, &caller_stack_);
  }
  void WaitFor(const Meeting& meeting, uint64_t number) {
    waits_for = &meeting;
    waited_number = number;
    Yield();
    waits_for = nullptr;
  }
  bool CanRun() const { return !done && (waits_for == nullptr || waits_for->number != waited_number); }

  const std::function<void()>* body = nullptr;
  bool done = true;
  const Meeting* waits_for = nullptr;
  uint64_t waited_number = 0;

 private:
  static void Arrive(void* kept, Stack* from) { emulation::Arrive(kept, from); }

  Stack stack_;
  Stack caller_stack_;
  boost::context::fiber fiber_;
  boost::context::fiber caller_;
};

// The one block that runs.
struct Block {
  unsigned threads = 0;
  Meeting barrier;
  Warp warps[kMostThreads / kWarpSize];
  std::vector<std::unique_ptr<Thread>> pool;
  std::mt19937 random{1};

  std::vector<unsigned> Arranged(unsigned count, Order order) {
    std::vector<unsigned> indices(count);
    std::iota(indices.begin(), indices.end(), 0u);
    if (order == Order::kReversed) std::reverse(indices.begin(), indices.end());
    if (order == Order::kShuffled) std::shuffle(indices.begin(), indices.end(), random);
    return indices;
  }

  void Run(Order order, const std::function<void()>& body) {
    for (unsigned t = 0; t < threads; ++t) {
      pool[t]->body = &body;
      pool[t]->done = false;
    }
    unsigned left = threads;
    while (left > 0) {
      bool any = false;
      for (unsigned t : Arranged(threads, order)) {
        if (!pool[t]->CanRun()) continue;
        any = true;
        threadIdx.x = t;
        pool[t]->Resume();
        if (pool[t]->done) --left;
      }
      if (any) continue;
      std::fprintf(stderr, "block %u: threads wait for others that have returned\n", blockIdx.x);
      std::abort();
    }
  }
};

// Never destroyed: its fibers would have to be unwound.
Block& TheBlock() {
  static auto* block = new Block;
  return *block;
}

}  // namespace

void RunGrid(unsigned blocks, unsigned threads, Order order, const std::function<void()>& body) {
  Block& block = TheBlock();
  block.threads = threads;
  while (block.pool.size() < threads) block.pool.push_back(std::make_unique<Thread>());
  gridDim = dim3(blocks);
  for (unsigned index : block.Arranged(blocks, order)) {
    blockIdx.x = index;
    block.Run(order, body);
  }
}

void WaitForBlock() {
  Block& block = TheBlock();
  const uint64_t number = block.barrier.number;
  const unsigned own = threadIdx.x;
  block.barrier.Arrive(block.threads);
  block.pool[own]->WaitFor(block.barrier, number);
}

const uint64_t* ExchangeInWarp(uint64_t bits) {
  Block& block = TheBlock();
  const unsigned own = threadIdx.x;
  Warp& warp = block.warps[own / kWarpSize];
  const uint64_t number = warp.meeting.number;
  uint64_t* of_lanes = warp.bits[number % 2];
  of_lanes[own % kWarpSize] = bits;
  warp.meeting.Arrive(kWarpSize);
  if (warp.meeting.number == number) block.pool[own]->WaitFor(warp.meeting, number);
  return of_lanes;
}

}  // namespace ccs::emulation
