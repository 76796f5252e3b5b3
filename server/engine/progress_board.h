// What the engine is doing, for other threads to see.
#ifndef CCS_SERVER_ENGINE_PROGRESS_BOARD_H_
#define CCS_SERVER_ENGINE_PROGRESS_BOARD_H_

#include <cstdint>
#include <mutex>

#include "server/engine/engine.h"

namespace ccs {

// Written by the engine's thread, read by any. Thread-safe.
class ProgressBoard {
 public:
  // `activity` is a literal.
  void SetActivity(const char* activity) {
    std::lock_guard lock(mutex_);
    now_.activity = activity;
    ++now_.progress;
  }
  // The same activity, but further.
  void Advance() {
    std::lock_guard lock(mutex_);
    ++now_.progress;
  }
  void SetStep(int64_t step) {
    std::lock_guard lock(mutex_);
    now_.step = step;
    ++now_.progress;
  }
  void SetLoss(double loss) {
    std::lock_guard lock(mutex_);
    now_.loss = loss;
  }
  EngineProgress Read() const {
    std::lock_guard lock(mutex_);
    return now_;
  }

 private:
  mutable std::mutex mutex_;
  EngineProgress now_{.step = 0, .activity = "idle", .progress = 0, .loss = 0};
};

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_PROGRESS_BOARD_H_
