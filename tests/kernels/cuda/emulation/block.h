// Runs the threads of a block, and says in which order.
#ifndef CCS_TESTS_KERNELS_CUDA_EMULATION_BLOCK_H_
#define CCS_TESTS_KERNELS_CUDA_EMULATION_BLOCK_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace ccs::emulation {

struct Index {
  unsigned x = 0;
};

// Of the blocks of a grid and, between two points where they wait for one another, of the threads of a block.
enum class Order { kForward, kReversed, kShuffled };

// Queues a kernel, whose body is called once for each thread. INVALID_CONFIGURATION for an empty grid or
// blocks that are not 1 to 32 whole warps.
cudaError_t Launch(unsigned blocks, unsigned threads, cudaStream_t stream, std::function<void()> body);

// Runs it at once. Ends the process if threads wait for others that have returned.
void RunGrid(unsigned blocks, unsigned threads, Order order, const std::function<void()>& body);

// For the thread that runs: waits for all threads of the block.
void WaitForBlock();
// Waits for all lanes of the warp; the bits that each of them gave, until the next but one exchange.
const uint64_t* ExchangeInWarp(uint64_t bits);

}  // namespace ccs::emulation

#endif  // CCS_TESTS_KERNELS_CUDA_EMULATION_BLOCK_H_
