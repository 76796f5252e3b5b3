#include "server/model_spec_proto.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace ccs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::ModelSpec Parse(const std::string& text) {
  v1::ModelSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  if (spec.num_classes() == 0) spec.set_num_classes(100);
  if (spec.dim() == 0) spec.set_dim(16);
  return spec;
}
std::string Error(const v1::ModelSpec& spec) {
  const absl::Status status = ModelSpecFromProto(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ModelSpecProtoTest, FillsInEveryDefault) {
  const absl::StatusOr<ModelSpec> spec = ModelSpecFromProto(Parse(""));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->num_classes, 100);
  EXPECT_EQ(spec->dim, 16);
  EXPECT_EQ(spec->head.margin, kernels::Margin{});
  EXPECT_EQ(spec->head.scale, 64);
  EXPECT_EQ(spec->head.filter_threshold, 1);
  EXPECT_EQ(spec->sample_rate, 1);
  EXPECT_EQ(spec->momentum, 0.9f);
  EXPECT_EQ(spec->weight_decay, 5e-4f);
  EXPECT_EQ(spec->precision, kernels::Precision::kFp32);
  EXPECT_EQ(spec->seed, 0u);
  EXPECT_TRUE(spec->normalise_features);
  EXPECT_EQ(spec->max_batch, 4096);
  EXPECT_EQ(spec->kept_logits_bytes, int64_t{256} << 20);
}

TEST(ModelSpecProtoTest, TakesWhatIsSaidAlsoZero) {
  const absl::StatusOr<ModelSpec> spec = ModelSpecFromProto(Parse(
      "head { scale: 32 filter_threshold: 0.5 } sample_rate: 0 optimizer { momentum: 0 weight_decay: 0 } "
      "precision: BF16 seed: 7 normalise_features: false max_batch: 8 kept_logits_bytes: 0"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->head.scale, 32);
  EXPECT_EQ(spec->head.filter_threshold, 0.5f);
  EXPECT_EQ(spec->sample_rate, 0);
  EXPECT_EQ(spec->momentum, 0);
  EXPECT_EQ(spec->weight_decay, 0);
  EXPECT_EQ(spec->precision, kernels::Precision::kBf16);
  EXPECT_EQ(spec->seed, 7u);
  EXPECT_FALSE(spec->normalise_features);
  EXPECT_EQ(spec->max_batch, 8);
  EXPECT_EQ(spec->kept_logits_bytes, 0);
}

TEST(ModelSpecProtoTest, EveryHeadHasItsMargin) {
  const auto margin = [](const std::string& head) {
    return ModelSpecFromProto(Parse("head { " + head + " }"))->head.margin;
  };
  EXPECT_EQ(margin("normface {}"), (kernels::Margin{1, 0, 0}));
  EXPECT_EQ(margin("cosface {}"), (kernels::Margin{1, 0, 0.4f}));
  EXPECT_EQ(margin("cosface { margin: 0 }"), (kernels::Margin{1, 0, 0}));
  EXPECT_EQ(margin("arcface {}"), (kernels::Margin{1, 0.5f, 0}));
  EXPECT_EQ(margin("arcface { margin: 0.3 }"), (kernels::Margin{1, 0.3f, 0}));
  EXPECT_EQ(margin("combined { m1: 1.1 m2: 0.2 m3: 0.1 }"), (kernels::Margin{1.1f, 0.2f, 0.1f}));
}

TEST(ModelSpecProtoTest, RefusesWhatCannotBeTrainedNamingFieldAndValue) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  v1::ModelSpec spec = Parse("");
  spec.set_num_classes(0);
  EXPECT_EQ(Error(spec), "model spec: num_classes must be at least 1, is 0");
  spec = Parse("");
  spec.set_dim(-3);
  EXPECT_THAT(Error(spec), AllOf(HasSubstr("dim"), HasSubstr("-3")));
  EXPECT_THAT(Error(Parse("head { scale: 0 }")), HasSubstr("head.scale must be positive and finite, is 0"));
  EXPECT_THAT(Error(Parse("head { scale: inf }")), HasSubstr("head.scale"));
  EXPECT_THAT(Error(Parse("head { filter_threshold: 1.5 }")), HasSubstr("in [-1, 1], is 1.5"));
  EXPECT_THAT(Error(Parse("head { combined { m3: 0.4 } }")), HasSubstr("head.combined.m1"));
  EXPECT_THAT(Error(Parse("head { arcface { margin: nan } }")), HasSubstr("m2"));
  EXPECT_THAT(Error(Parse("head { cosface { margin: inf } }")), HasSubstr("m3"));
  EXPECT_THAT(Error(Parse("sample_rate: -0.1")),
              HasSubstr("sample_rate must be finite and not negative, is -0.1"));
  EXPECT_THAT(Error(Parse("sample_rate: nan")), HasSubstr("sample_rate"));
  EXPECT_THAT(Error(Parse("optimizer { momentum: 1 }")),
              HasSubstr("optimizer.momentum must be in [0, 1), is 1"));
  EXPECT_THAT(Error(Parse("optimizer { weight_decay: -1 }")), HasSubstr("optimizer.weight_decay"));
  EXPECT_THAT(Error(Parse("max_batch: -1")), HasSubstr("max_batch must be at least 1, is -1"));
  EXPECT_THAT(Error(Parse("kept_logits_bytes: -1")), HasSubstr("kept_logits_bytes"));
  spec = Parse("");
  spec.set_precision(static_cast<v1::Precision>(77));
  EXPECT_THAT(Error(spec), HasSubstr("is 77"));
  spec = Parse("");
  spec.mutable_optimizer()->set_momentum(nan);
  EXPECT_THAT(Error(spec), HasSubstr("optimizer.momentum"));
}

TEST(ModelSpecProtoTest, AnArccosNeedsUnitFeatures) {
  EXPECT_THAT(Error(Parse("head { arcface {} } normalise_features: false")), HasSubstr("normalise_features"));
  EXPECT_TRUE(ModelSpecFromProto(Parse("head { cosface {} } normalise_features: false")).ok());
}

TEST(ModelSpecProtoTest, SpecsThatMeanTheSameHaveOneText) {
  const auto text = [](const std::string& spec) { return CanonicalSpec(Parse(spec)).value(); };
  EXPECT_EQ(text(""), text("head { normface {} scale: 64 } sample_rate: 1 max_batch: 4096 precision: FP32"));
  EXPECT_EQ(text("head { cosface {} }"), text("head { combined { m1: 1 m3: 0.4 } }"));
  EXPECT_NE(text(""), text("seed: 1"));
  EXPECT_THAT(text("sample_rate: 0.1"), HasSubstr("sample_rate: 0.1\n"));
  EXPECT_FALSE(CanonicalSpec(v1::ModelSpec()).ok());
}

TEST(ModelSpecProtoTest, NamesEveryDifferenceWithBothValues) {
  EXPECT_EQ(SpecDifference(Parse(""), Parse("sample_rate: 1")), "");
  EXPECT_EQ(SpecDifference(Parse("sample_rate: 0.1"), Parse("seed: 9")),
            "sample_rate: 0.1 here, 1 there; seed: 0 here, 9 there");
  for (const char* other :
       {"num_classes: 101", "dim: 17", "head { combined { m1: 2 } }", "head { combined { m1: 1 m2: 0.1 } }",
        "head { cosface {} }", "head { scale: 1 }", "head { filter_threshold: 0 }", "sample_rate: 0.5",
        "optimizer { momentum: 0 }", "optimizer { weight_decay: 0 }", "precision: TF32", "seed: 1",
        "normalise_features: false", "max_batch: 1", "kept_logits_bytes: 1"}) {
    EXPECT_NE(SpecDifference(Parse(""), Parse(other)), "") << other;
  }
  EXPECT_THAT(SpecDifference(Parse(""), v1::ModelSpec()), HasSubstr("there: model spec: num_classes"));
}

class ReadModelSpecTest : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path =
        testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".textproto";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(ReadModelSpecTest, ReadsATextproto) {
  const auto spec = ReadModelSpec(Write("# a comment\nnum_classes: 5\ndim: 2\nhead { cosface {} }\n"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->num_classes(), 5);
  EXPECT_TRUE(spec->head().has_cosface());
}

TEST_F(ReadModelSpecTest, NamesLineAndColumnOfAMistake) {
  const absl::Status status = ReadModelSpec(Write("num_classes: 5\n  dimension: 2\n")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(".textproto:2:"), HasSubstr("dimension")));
}

TEST_F(ReadModelSpecTest, AMissingFileIsNotFoundWithItsName) {
  const absl::Status status = ReadModelSpec("/nowhere/model.textproto").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/model.textproto"));
}

}  // namespace
}  // namespace ccs
