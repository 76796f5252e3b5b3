#include "server/rpc/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "server/engine/error_info.h"

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

v1::Tensor Halves(v1::DataType type, int64_t cols, const std::vector<uint16_t>& bits) {
  v1::Tensor tensor;
  tensor.set_dtype(type);
  tensor.set_rows(static_cast<int64_t>(bits.size()) / cols);
  tensor.set_cols(cols);
  tensor.mutable_data()->assign(reinterpret_cast<const char*>(bits.data()), bits.size() * 2);
  return tensor;
}

v1::Tensor Floats(int64_t cols, const std::vector<float>& values) {
  v1::Tensor tensor;
  EncodeTensor(values, cols, &tensor);
  return tensor;
}

std::string Reason(const absl::Status& status) {
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  return info ? info->reason : "";
}

TEST(TensorTest, FloatsComeBackBitForBit) {
  const std::vector<float> values = {
      1.5f,           -0.0f, std::numeric_limits<float>::denorm_min(), -std::numeric_limits<float>::max(),
      0x1.fffffep-3f, 7};
  const absl::StatusOr<std::vector<float>> decoded = DecodeTensor(Floats(3, values), 3, "features");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->size(), values.size());
  EXPECT_EQ(std::memcmp(decoded->data(), values.data(), values.size() * sizeof(float)), 0);
}

TEST(TensorTest, EncodesShapeAndTypeWithTheValues) {
  const v1::Tensor tensor = Floats(3, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(tensor.dtype(), v1::FLOAT32);
  EXPECT_EQ(tensor.rows(), 2);
  EXPECT_EQ(tensor.cols(), 3);
  EXPECT_EQ(tensor.data().size(), 24u);
}

TEST(TensorTest, Bfloat16IsTheUpperHalfOfAFloat) {
  EXPECT_THAT(*DecodeTensor(Halves(v1::BFLOAT16, 2, {0x3f80, 0xc020, 0x0001, 0x7f7f}), 2, "features"),
              ElementsAre(1.0f, -2.5f, 0x1p-133f, 0x1.fep127f));
}

TEST(TensorTest, Float16IsExactFromSubnormalsToTheLargest) {
  EXPECT_THAT(*DecodeTensor(Halves(v1::FLOAT16, 7, {0x3c00, 0xc100, 0x0001, 0x83ff, 0x0400, 0x7bff, 0x0000}),
                            7, "features"),
              ElementsAre(1.0f, -2.5f, 0x1p-24f, -1023 * 0x1p-24f, 0x1p-14f, 65504.0f, 0.0f));
}

TEST(TensorTest, EveryFiniteFloat16HasItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) == 0x7c00) continue;  // infinite or NaN
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double mantissa = bits & 0x3ff;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    const double expected = bits & 0x8000 ? -magnitude : magnitude;
    ASSERT_EQ((*DecodeTensor(Halves(v1::FLOAT16, 1, {static_cast<uint16_t>(bits)}), 1, "features"))[0],
              expected)
        << bits;
  }
}

TEST(TensorTest, ATensorWithoutRowsIsEmptyWhateverElseItSays) {
  EXPECT_THAT(*DecodeTensor(v1::Tensor(), 4, "features"), IsEmpty());
  EXPECT_THAT(*DecodeTensor(Floats(4, {}), 4, "features"), IsEmpty());
}

TEST(TensorTest, NonFiniteValuesAreNamedByRowAndColumn) {
  const auto refusal = [](float value) {
    std::vector<float> values(4 * 20, 1.0f);
    values[3 * 20 + 17] = value;
    return DecodeTensor(Floats(20, values), 20, "features").status();
  };
  EXPECT_EQ(refusal(std::nanf("")).message(), "features row 3 column 17 is nan");
  EXPECT_EQ(refusal(kInfinity).message(), "features row 3 column 17 is inf");
  EXPECT_EQ(refusal(-kInfinity).message(), "features row 3 column 17 is -inf");
  EXPECT_EQ(refusal(kInfinity).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Reason(refusal(kInfinity)), "not_finite");
}

TEST(TensorTest, NonFiniteHalvesAreRefusedToo) {
  EXPECT_EQ(DecodeTensor(Halves(v1::FLOAT16, 2, {0x3c00, 0xfc00}), 2, "queries").status().message(),
            "queries row 0 column 1 is -inf");
  EXPECT_EQ(DecodeTensor(Halves(v1::BFLOAT16, 2, {0x7fc0, 0x3f80}), 2, "queries").status().message(),
            "queries row 0 column 0 is nan");
}

TEST(TensorTest, AnotherDimIsRefusedWithBoth) {
  const absl::Status status = DecodeTensor(Floats(3, {1, 2, 3}), 4, "features").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "features have 3 columns; the model's dim is 4");
  EXPECT_EQ(Reason(status), "wrong_dim");
}

TEST(TensorTest, DataThatDoesNotFitTheShapeIsRefused) {
  v1::Tensor tensor = Floats(2, {1, 2, 3, 4});
  tensor.mutable_data()->pop_back();
  EXPECT_EQ(Reason(DecodeTensor(tensor, 2, "features").status()), "wrong_shape");
  for (const int64_t rows : {int64_t{1}, int64_t{3}, int64_t{-2}, int64_t{0},
                             std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    tensor = Floats(2, {1, 2, 3, 4});
    tensor.set_rows(rows);
    EXPECT_EQ(Reason(DecodeTensor(tensor, 2, "features").status()), "wrong_shape") << rows;
  }
}

TEST(TensorTest, AnUnknownTypeIsRefused) {
  v1::Tensor tensor = Floats(2, {1, 2});
  tensor.set_dtype(v1::DATA_TYPE_UNSPECIFIED);
  EXPECT_EQ(Reason(DecodeTensor(tensor, 2, "features").status()), "wrong_dtype");
  tensor.set_dtype(static_cast<v1::DataType>(77));
  EXPECT_EQ(Reason(DecodeTensor(tensor, 2, "features").status()), "wrong_dtype");
}

}  // namespace
}  // namespace ccs
