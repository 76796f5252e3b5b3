#include "server/rpc/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/engine/error_info.h"

namespace ccs {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors travel in little-endian order");

absl::Status Invalid(const char* reason, const std::string& message) {
  return WithErrorInfo(absl::InvalidArgumentError(message), {.reason = reason});
}

// 0 for a type that is none of the protocol's.
int64_t BytesPerValue(v1::DataType type) {
  switch (type) {
    case v1::FLOAT32:
      return 4;
    case v1::BFLOAT16:
    case v1::FLOAT16:
      return 2;
    default:
      return 0;
  }
}

float FromBfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float FromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float32
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f) | sign);
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent - 15 + 127;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

template <typename Convert>
void Widen(const std::string& data, Convert convert, std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, data.data() + 2 * i, 2);
    values[i] = convert(bits);
  }
}

// An exponent of all ones is infinite or NaN; the maximum over a row is what the compiler can vectorise.
bool AllFinite(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  return largest < 0x7f800000u;
}

absl::Status CheckFinite(const std::vector<float>& values, int64_t cols, absl::string_view what) {
  const int64_t rows = cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols;
  for (int64_t row = 0; row < rows; ++row) {
    const float* begin = values.data() + row * cols;
    if (AllFinite(begin, cols)) continue;
    const float* bad = std::find_if(begin, begin + cols, [](float value) { return !std::isfinite(value); });
    return Invalid("not_finite", absl::StrCat(what, " row ", row, " column ", bad - begin, " is ",
                                              std::isnan(*bad) ? "nan" : (*bad > 0 ? "inf" : "-inf")));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const v1::Tensor& tensor, int64_t cols, absl::string_view what) {
  const int64_t value_bytes = BytesPerValue(tensor.dtype());
  if (value_bytes == 0) {
    return Invalid("wrong_dtype", absl::StrCat(what, " have data type ", static_cast<int>(tensor.dtype()),
                                               "; FLOAT32, BFLOAT16 or FLOAT16 is needed"));
  }
  if (tensor.cols() != cols) {
    return Invalid("wrong_dim",
                   absl::StrCat(what, " have ", tensor.cols(), " columns; the model's dim is ", cols));
  }
  const int64_t row_bytes = cols * value_bytes;
  const int64_t bytes = static_cast<int64_t>(tensor.data().size());
  // Compared by division, since rows is whatever the client says.
  if (tensor.rows() < 0 || bytes % row_bytes != 0 || bytes / row_bytes != tensor.rows()) {
    return Invalid("wrong_shape", absl::StrCat(what, " of ", tensor.rows(), " rows, ", cols, " columns and ",
                                               value_bytes, " bytes a value come with ", bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<float>> DecodeTensor(const v1::Tensor& tensor, int64_t cols,
                                                absl::string_view what) {
  if (tensor.rows() == 0 && tensor.data().empty()) return std::vector<float>();
  if (absl::Status status = CheckShape(tensor, cols, what); !status.ok()) return status;
  std::vector<float> values(static_cast<size_t>(tensor.rows() * cols));
  switch (tensor.dtype()) {
    case v1::BFLOAT16:
      Widen(tensor.data(), FromBfloat16, values);
      break;
    case v1::FLOAT16:
      Widen(tensor.data(), FromFloat16, values);
      break;
    default:
      std::memcpy(values.data(), tensor.data().data(), tensor.data().size());
  }
  if (absl::Status status = CheckFinite(values, cols, what); !status.ok()) return status;
  return values;
}

void EncodeTensor(absl::Span<const float> values, int64_t cols, v1::Tensor* tensor) {
  tensor->set_dtype(v1::FLOAT32);
  tensor->set_rows(static_cast<int64_t>(values.size()) / cols);
  tensor->set_cols(cols);
  tensor->mutable_data()->assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

}  // namespace ccs
