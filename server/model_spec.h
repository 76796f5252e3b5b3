// What a cluster trains, as the server's own plain struct.
#ifndef CCS_SERVER_MODEL_SPEC_H_
#define CCS_SERVER_MODEL_SPEC_H_

#include <cstdint>

#include "kernels/head.h"
#include "kernels/shard_backend.h"

namespace ccs {

// See proto/ccs/v1/model.proto for each field's meaning; defaults are filled in.
struct ModelSpec {
  int64_t num_classes = 0;
  int dim = 0;
  kernels::Head head;
  double sample_rate = 1;
  float momentum = 0.9f;
  float weight_decay = 5e-4f;
  kernels::Precision precision = kernels::Precision::kFp32;
  uint64_t seed = 0;
  bool normalise_features = true;
  int max_batch = 4096;
  int64_t kept_logits_bytes = int64_t{256} << 20;
};

}  // namespace ccs

#endif  // CCS_SERVER_MODEL_SPEC_H_
