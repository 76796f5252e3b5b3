// Gives a coordinator its sense of time.
#ifndef CCS_SERVER_CLUSTER_COORDINATOR_TICKER_H_
#define CCS_SERVER_CLUSTER_COORDINATOR_TICKER_H_

#include <condition_variable>
#include <mutex>
#include <thread>

#include "server/cluster/coordinator.h"

namespace ccs {

// Ticks from construction to destruction, on a thread of its own. The coordinator outlives it.
class CoordinatorTicker {
 public:
  explicit CoordinatorTicker(Coordinator* coordinator);
  ~CoordinatorTicker();

 private:
  void Run();

  Coordinator* const coordinator_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_COORDINATOR_TICKER_H_
