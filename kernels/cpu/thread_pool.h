// Threads that share the work of one call.
#ifndef CCS_KERNELS_CPU_THREAD_POOL_H_
#define CCS_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ccs::kernels {

// The caller of ParallelFor is one of the `threads`; the others sleep between calls. One thread at a time
// may call ParallelFor, and not from inside a call.
class ThreadPool {
 public:
  // Throws std::system_error if the system gives no more threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(others_.size()) + 1; }

  // Runs work(unit, worker) once for every unit in [0, units), in no fixed order, and returns when all are
  // done. `worker` in [0, threads()) names the thread, for scratch memory of its own. `work` must not throw.
  void ParallelFor(int64_t units, const std::function<void(int64_t unit, int worker)>& work);

 private:
  void Stop();
  void RunWorker(int worker);
  void TakeUnits(int worker);

  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  int64_t call_ = 0;  // counts calls of ParallelFor
  int busy_ = 0;      // other threads still at work in this call
  bool stopping_ = false;
  const std::function<void(int64_t, int)>* work_ = nullptr;
  int64_t units_ = 0;
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> others_;
};

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CPU_THREAD_POOL_H_
