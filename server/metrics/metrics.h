// What a shard tells Prometheus. prometheus-cpp appears in metrics.cc alone.
#ifndef CCS_SERVER_METRICS_METRICS_H_
#define CCS_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ccs {

// How long each phase of one step took on this shard.
struct StepPhases {
  absl::Duration wait;    // from the first own slice to Go
  absl::Duration gather;  // all-gather of features and labels
  absl::Duration sample;
  absl::Duration pass1;
  absl::Duration log;       // pass 1 is done, the step log is not
  absl::Duration exchange;  // partials and reduce-scatter
  absl::Duration reply;
  absl::Duration staging;  // rows copied for a checkpoint that is being written, and waiting for room
  absl::Duration pass2;
};

struct StepObservation {
  int64_t step = 0;
  double loss = 0;
  float learning_rate = 0;
  int64_t batch_rows = 0;
  int64_t labelled_rows = 0;
  int64_t own_rows = 0;
  int64_t sampled_classes = 0;
  int64_t positives = 0;
  StepPhases phases;
};

struct BuildAndSpec {
  std::string version;
  std::string device;
  int rank = 0;
  int num_shards = 1;
  int64_t num_classes = 0;
  int dim = 0;
  double sample_rate = 1;
  std::string head;  // e.g. "cosface"
};

// Thread-safe. The metrics are listed in METRICS.md.
class Metrics {
 public:
  explicit Metrics(const BuildAndSpec& info);
  ~Metrics();

  void StepFinished(const StepObservation& step);
  void RequestRejected(const std::string& reason);  // a word from a fixed set
  void RequestFinished(const std::string& method, const std::string& code, absl::Duration duration);
  // `new_bytes` of the `bytes` on disk are not shared with an earlier one.
  void CheckpointWritten(absl::Duration duration, int64_t bytes, int64_t new_bytes);
  // Training waited for a checkpoint: its beginning, the end of the one before, rows it still needs.
  void CheckpointStalled(absl::Duration duration);
  void CheckpointFailed();
  void CheckpointMirrored(bool ok);
  void SetEpoch(uint64_t epoch, bool serving);
  void SetMemory(int64_t state_bytes, int64_t workspace_bytes);

  // Serves /metrics on host:port (port 0: any) until destroyed; returns the port. UNAVAILABLE names an
  // address that cannot be bound.
  absl::StatusOr<int> Serve(const std::string& address);
  // The same text as /metrics.
  std::string Text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ccs

#endif  // CCS_SERVER_METRICS_METRICS_H_
