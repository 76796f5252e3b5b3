// Float matrices to and from the protocol's Tensor.
#ifndef CCS_CLIENT_TENSOR_H_
#define CCS_CLIENT_TENSOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ccs/v1/training.pb.h"

namespace ccs::client {

// `values` [values.size() / cols, cols] as FLOAT32. Requires cols > 0.
void FillTensor(absl::Span<const float> values, int64_t cols, ccs::v1::Tensor* tensor);

// OK if `tensor` is FLOAT32 [rows, cols] with all its data; else INTERNAL that names `what`.
absl::Status CheckTensor(const ccs::v1::Tensor& tensor, int64_t rows, int64_t cols, absl::string_view what);

// Row `row` of a checked tensor into `out` [cols].
void CopyRow(const ccs::v1::Tensor& tensor, int64_t row, float* out);

// OK if `values` is [rows, cols]; else INVALID_ARGUMENT that names `what` and both sizes.
absl::Status CheckShape(absl::Span<const float> values, int64_t rows, int64_t cols, absl::string_view what);

}  // namespace ccs::client

#endif  // CCS_CLIENT_TENSOR_H_
