// A control plane that remembers what it was told.
#ifndef CCS_TESTS_SERVER_ENGINE_RECORDING_CONTROL_PLANE_H_
#define CCS_TESTS_SERVER_ENGINE_RECORDING_CONTROL_PLANE_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/control_plane.h"

namespace ccs::testing {

class RecordingControlPlane : public ControlPlane {
 public:
  struct Ready {
    int trainer_rank = 0;
    int64_t step = 0;
    int version = 0;
    int attempt = 0;
    friend bool operator==(const Ready&, const Ready&) = default;
  };
  struct Done {
    uint64_t sequence = 0;
    absl::Status status;
    int64_t bytes = 0;
  };
  struct Formation {
    uint64_t epoch = 0;
    absl::Status status;
    FormedState state;
  };

  void SliceReady(const Slice& slice, int version, int attempt) override {
    Record(&ready_, {slice.trainer_rank, slice.step, version, attempt});
  }
  void WriteStaged(const std::string& /*write_id*/, int64_t /*rows*/) override {}
  void Formed(uint64_t epoch, const absl::StatusOr<FormedState>& state) override {
    Record(&formed_, {epoch, state.status(), state.ok() ? *state : FormedState{}});
  }
  void OperationDone(uint64_t sequence, const absl::Status& status, int64_t bytes) override {
    Record(&done_, {sequence, status, bytes});
  }
  void EpochFailed(const absl::Status& status) override { Record(&failures_, status); }

  std::vector<Ready> ready() const {
    std::lock_guard lock(mutex_);
    return ready_;
  }
  size_t num_failures() const {
    std::lock_guard lock(mutex_);
    return failures_.size();
  }
  // The n-th report (from 0) of a kind; blocks until it is there.
  Ready WaitReady(size_t n = 0) { return Wait(ready_, n); }
  Formation WaitFormed(size_t n = 0) { return Wait(formed_, n); }
  Done WaitDone(size_t n = 0) { return Wait(done_, n); }
  absl::Status WaitFailure(size_t n = 0) { return Wait(failures_, n); }

 private:
  template <typename T>
  void Record(std::vector<T>* list, T entry) {
    std::lock_guard lock(mutex_);
    list->push_back(std::move(entry));
    changed_.notify_all();
  }
  template <typename T>
  T Wait(const std::vector<T>& list, size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return list.size() > n; });
    return list[n];
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Ready> ready_;
  std::vector<Formation> formed_;
  std::vector<Done> done_;
  std::vector<absl::Status> failures_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_SERVER_ENGINE_RECORDING_CONTROL_PLANE_H_
