#include "kernels/cpu/thread_pool.h"

#include <system_error>

namespace ccs::kernels {

ThreadPool::ThreadPool(int threads) {
  others_.reserve(threads - 1);
  try {
    for (int worker = 1; worker < threads; ++worker)
      others_.emplace_back([this, worker] { RunWorker(worker); });
  } catch (const std::system_error&) {
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : others_) thread.join();
}

void ThreadPool::ParallelFor(int64_t units, const std::function<void(int64_t, int)>& work) {
  if (others_.empty() || units <= 1) {
    for (int64_t unit = 0; unit < units; ++unit) work(unit, 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    work_ = &work;
    units_ = units;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<int>(others_.size());
    ++call_;
  }
  start_.notify_all();
  TakeUnits(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::TakeUnits(int worker) {
  for (int64_t unit; (unit = next_.fetch_add(1, std::memory_order_relaxed)) < units_;) (*work_)(unit, worker);
}

void ThreadPool::RunWorker(int worker) {
  int64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stopping_ || call_ != seen; });
    if (stopping_) return;
    seen = call_;
    lock.unlock();
    TakeUnits(worker);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace ccs::kernels
