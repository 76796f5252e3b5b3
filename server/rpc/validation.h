// Turns requests into the engine's structs, or says what is wrong with them.
#ifndef CCS_SERVER_RPC_VALIDATION_H_
#define CCS_SERVER_RPC_VALIDATION_H_

#include <ccs/v1/training.pb.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/layout.h"
#include "server/engine/types.h"
#include "server/model_spec.h"

namespace ccs {

// What a shard's requests are checked against.
struct RequestRules {
  ModelSpec spec;
  int rank = 0;
  int num_shards = 1;
  bool has_checkpoint_dir = false;
  int64_t max_message_bytes = 0;
};

// Everything that can be said of a request without knowing where the cluster stands. No state: any thread.
//
// Errors carry an ErrorInfo with a reason (listed in README.md): INVALID_ARGUMENT names field, row and value;
// RESOURCE_EXHAUSTED both numbers; FAILED_PRECONDITION what this server was started without.
class RequestValidator {
 public:
  struct Query {
    std::vector<float> features;  // [rows, dim]
    std::vector<int64_t> labels;  // [rows]
    std::optional<double> sample_rate;
  };
  struct Centres {
    std::vector<int64_t> class_ids;
    std::vector<float> values;  // [class_ids, dim]
  };

  explicit RequestValidator(const RequestRules& rules);

  absl::Status OpenRun(const v1::OpenRunRequest& request) const;
  absl::Status CloseRun(const v1::CloseRunRequest& request) const;
  // The slice with its digest; the caller adds the deadline.
  absl::StatusOr<Slice> Step(const v1::StepRequest& request) const;
  absl::StatusOr<Query> Evaluate(const v1::EvaluateRequest& request) const;
  // The queries, [rows, dim].
  absl::StatusOr<std::vector<float>> Nearest(const v1::NearestRequest& request) const;
  absl::StatusOr<std::vector<int64_t>> ReadCentres(const v1::ReadCentresRequest& request) const;
  absl::StatusOr<Centres> WriteCentres(const v1::WriteCentresRequest& request) const;

  const RequestRules& rules() const { return rules_; }

 private:
  absl::StatusOr<std::vector<float>> Features(const v1::Tensor& tensor, const char* what) const;
  absl::StatusOr<StepParams> Params(const v1::StepParams& params) const;
  absl::StatusOr<std::vector<int64_t>> Labels(const google::protobuf::RepeatedField<int64_t>& labels,
                                              int64_t rows) const;
  absl::Status CheckOwned(const std::vector<int64_t>& class_ids) const;

  const RequestRules rules_;
  const ClassRange own_;
};

}  // namespace ccs

#endif  // CCS_SERVER_RPC_VALIDATION_H_
