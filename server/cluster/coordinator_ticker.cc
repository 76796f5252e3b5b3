#include "server/cluster/coordinator_ticker.h"

#include <chrono>

namespace ccs {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(50);

}  // namespace

CoordinatorTicker::CoordinatorTicker(Coordinator* coordinator)
    : coordinator_(coordinator), thread_([this] { Run(); }) {}

CoordinatorTicker::~CoordinatorTicker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void CoordinatorTicker::Run() {
  // A wall clock that is set while the cluster runs must not look like lost shards.
  const absl::Time wall_start = absl::Now();
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    coordinator_->Tick(wall_start + absl::FromChrono(std::chrono::steady_clock::now() - start));
    lock.lock();
    stop_.wait_until(lock, std::chrono::system_clock::now() + kInterval, [this] { return stopping_; });
  }
}

}  // namespace ccs
