#include "client/tensor.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ccs::client {

static_assert(std::endian::native == std::endian::little, "tensors travel little-endian");

void FillTensor(absl::Span<const float> values, int64_t cols, ccs::v1::Tensor* tensor) {
  tensor->set_dtype(ccs::v1::FLOAT32);
  tensor->set_rows(static_cast<int64_t>(values.size()) / cols);
  tensor->set_cols(cols);
  tensor->set_data(values.data(), values.size() * sizeof(float));
}

absl::Status CheckTensor(const ccs::v1::Tensor& tensor, int64_t rows, int64_t cols, absl::string_view what) {
  if (tensor.dtype() == ccs::v1::FLOAT32 && tensor.rows() == rows && tensor.cols() == cols &&
      tensor.data().size() == rows * cols * sizeof(float)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the server's ", what, " should be float32 [", rows, ", ", cols,
                                          "] but is ", ccs::v1::DataType_Name(tensor.dtype()), " [",
                                          tensor.rows(), ", ", tensor.cols(), "] of ", tensor.data().size(),
                                          " bytes"));
}

void CopyRow(const ccs::v1::Tensor& tensor, int64_t row, float* out) {
  const size_t bytes = tensor.cols() * sizeof(float);
  std::memcpy(out, tensor.data().data() + row * bytes, bytes);
}

absl::Status CheckShape(absl::Span<const float> values, int64_t rows, int64_t cols, absl::string_view what) {
  if (static_cast<int64_t>(values.size()) == rows * cols) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " has ", values.size(), " values where ", rows,
                                                 " rows of width ", cols, " are ", rows * cols));
}

}  // namespace ccs::client
