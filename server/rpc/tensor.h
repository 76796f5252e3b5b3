// Tensors of the protocol to and from float matrices.
#ifndef CCS_SERVER_RPC_TENSOR_H_
#define CCS_SERVER_RPC_TENSOR_H_

#include <ccs/v1/training.pb.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ccs {

// The values of a tensor [any rows, cols] of float32, bfloat16 or float16 as floats, every one finite.
// INVALID_ARGUMENT, with an ErrorInfo, names `what` and the two shapes, the type, or row, column and value;
// a tensor without rows need not state its columns.
absl::StatusOr<std::vector<float>> DecodeTensor(const v1::Tensor& tensor, int64_t cols,
                                                absl::string_view what);

// `values` [values.size() / cols, cols] as float32.
void EncodeTensor(absl::Span<const float> values, int64_t cols, v1::Tensor* tensor);

}  // namespace ccs

#endif  // CCS_SERVER_RPC_TENSOR_H_
