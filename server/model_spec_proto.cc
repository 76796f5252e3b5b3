#include "server/model_spec_proto.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ccs {
namespace {

// The shortest text that reads back as the same value.
template <typename Float>
std::string Shortest(Float value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

absl::Status Invalid(const std::string& field, const std::string& wanted, const std::string& value) {
  return absl::InvalidArgumentError(absl::StrCat("model spec: ", field, " must be ", wanted, ", is ", value));
}

absl::StatusOr<kernels::Margin> MarginFromProto(const v1::Head& head) {
  kernels::Margin margin;
  switch (head.kind_case()) {
    case v1::Head::KIND_NOT_SET:
    case v1::Head::kNormface:
      break;
    case v1::Head::kCosface:
      margin.m3 = head.cosface().has_margin() ? head.cosface().margin() : 0.4f;
      break;
    case v1::Head::kArcface:
      margin.m2 = head.arcface().has_margin() ? head.arcface().margin() : 0.5f;
      break;
    case v1::Head::kCombined:
      margin = {head.combined().m1(), head.combined().m2(), head.combined().m3()};
      break;
  }
  // A forgotten m1 would read as 0 and make every target logit the same constant.
  if (!(margin.m1 > 0) || !std::isfinite(margin.m1)) {
    return Invalid("head.combined.m1", "positive (1 leaves the angle as it is)", Shortest(margin.m1));
  }
  if (!std::isfinite(margin.m2)) return Invalid("head margin m2", "finite", Shortest(margin.m2));
  if (!std::isfinite(margin.m3)) return Invalid("head margin m3", "finite", Shortest(margin.m3));
  return margin;
}

absl::StatusOr<kernels::Head> HeadFromProto(const v1::Head& proto) {
  kernels::Head head;
  absl::StatusOr<kernels::Margin> margin = MarginFromProto(proto);
  if (!margin.ok()) return margin.status();
  head.margin = *margin;
  if (proto.has_scale()) head.scale = proto.scale();
  if (proto.has_filter_threshold()) head.filter_threshold = proto.filter_threshold();
  if (!(head.scale > 0) || !std::isfinite(head.scale)) {
    return Invalid("head.scale", "positive and finite", Shortest(head.scale));
  }
  if (!(head.filter_threshold >= -1 && head.filter_threshold <= 1)) {
    return Invalid("head.filter_threshold", "in [-1, 1]", Shortest(head.filter_threshold));
  }
  return head;
}

absl::StatusOr<kernels::Precision> PrecisionFromProto(v1::Precision precision) {
  switch (precision) {
    case v1::PRECISION_UNSPECIFIED:
    case v1::FP32:
      return kernels::Precision::kFp32;
    case v1::TF32:
      return kernels::Precision::kTf32;
    case v1::BF16:
      return kernels::Precision::kBf16;
    case v1::FASTEST:
      return kernels::Precision::kFastest;
    default:
      return Invalid("precision", "FP32, TF32, BF16 or FASTEST", absl::StrCat(static_cast<int>(precision)));
  }
}

std::string PrecisionName(kernels::Precision precision) {
  switch (precision) {
    case kernels::Precision::kFp32:
      return "FP32";
    case kernels::Precision::kTf32:
      return "TF32";
    case kernels::Precision::kBf16:
      return "BF16";
    case kernels::Precision::kFastest:
      return "FASTEST";
  }
  return "unknown";
}

absl::Status CheckNumbers(const ModelSpec& spec) {
  if (spec.num_classes < 1) return Invalid("num_classes", "at least 1", absl::StrCat(spec.num_classes));
  if (spec.dim < 1) return Invalid("dim", "at least 1", absl::StrCat(spec.dim));
  if (!(spec.sample_rate >= 0) || !std::isfinite(spec.sample_rate)) {
    return Invalid("sample_rate", "finite and not negative", Shortest(spec.sample_rate));
  }
  if (!(spec.momentum >= 0 && spec.momentum < 1)) {
    return Invalid("optimizer.momentum", "in [0, 1)", Shortest(spec.momentum));
  }
  if (!(spec.weight_decay >= 0) || !std::isfinite(spec.weight_decay)) {
    return Invalid("optimizer.weight_decay", "finite and not negative", Shortest(spec.weight_decay));
  }
  if (spec.max_batch < 1) return Invalid("max_batch", "at least 1", absl::StrCat(spec.max_batch));
  if (spec.kept_logits_bytes < 0) {
    return Invalid("kept_logits_bytes", "at least 0", absl::StrCat(spec.kept_logits_bytes));
  }
  if (spec.head.margin.needs_arccos() && !spec.normalise_features) {
    return Invalid("normalise_features",
                   "true for a head with an arccos (m1 other than 1 or m2 other than 0)", "false");
  }
  return absl::OkStatus();
}

// Every field with its value, in the order of the message.
std::vector<std::pair<std::string, std::string>> Fields(const ModelSpec& spec) {
  return {
      {"num_classes", absl::StrCat(spec.num_classes)},
      {"dim", absl::StrCat(spec.dim)},
      {"head.m1", Shortest(spec.head.margin.m1)},
      {"head.m2", Shortest(spec.head.margin.m2)},
      {"head.m3", Shortest(spec.head.margin.m3)},
      {"head.scale", Shortest(spec.head.scale)},
      {"head.filter_threshold", Shortest(spec.head.filter_threshold)},
      {"sample_rate", Shortest(spec.sample_rate)},
      {"optimizer.momentum", Shortest(spec.momentum)},
      {"optimizer.weight_decay", Shortest(spec.weight_decay)},
      {"precision", PrecisionName(spec.precision)},
      {"seed", absl::StrCat(spec.seed)},
      {"normalise_features", spec.normalise_features ? "true" : "false"},
      {"max_batch", absl::StrCat(spec.max_batch)},
      {"kept_logits_bytes", absl::StrCat(spec.kept_logits_bytes)},
  };
}

// Keeps the first error of a textproto with its place.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(std::string path) : path_(std::move(path)) {}
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (error_.empty()) error_ = absl::StrCat(path_, ":", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& error() const { return error_; }

 private:
  const std::string path_;
  std::string error_;
};

}  // namespace

absl::StatusOr<ModelSpec> ModelSpecFromProto(const v1::ModelSpec& proto) {
  ModelSpec spec;
  spec.num_classes = proto.num_classes();
  spec.dim = proto.dim();
  absl::StatusOr<kernels::Head> head = HeadFromProto(proto.head());
  if (!head.ok()) return head.status();
  spec.head = *head;
  if (proto.has_sample_rate()) spec.sample_rate = proto.sample_rate();
  if (proto.optimizer().has_momentum()) spec.momentum = proto.optimizer().momentum();
  if (proto.optimizer().has_weight_decay()) spec.weight_decay = proto.optimizer().weight_decay();
  absl::StatusOr<kernels::Precision> precision = PrecisionFromProto(proto.precision());
  if (!precision.ok()) return precision.status();
  spec.precision = *precision;
  spec.seed = proto.seed();
  if (proto.has_normalise_features()) spec.normalise_features = proto.normalise_features();
  if (proto.max_batch() != 0) spec.max_batch = proto.max_batch();
  if (proto.has_kept_logits_bytes()) spec.kept_logits_bytes = proto.kept_logits_bytes();
  if (absl::Status status = CheckNumbers(spec); !status.ok()) return status;
  return spec;
}

absl::StatusOr<v1::ModelSpec> ReadModelSpec(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("model spec: cannot open ", path));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  FirstError errors(path);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  v1::ModelSpec spec;
  if (!parser.ParseFromString(text, &spec)) return absl::InvalidArgumentError(errors.error());
  return spec;
}

absl::StatusOr<std::string> CanonicalSpec(const v1::ModelSpec& proto) {
  absl::StatusOr<ModelSpec> spec = ModelSpecFromProto(proto);
  if (!spec.ok()) return spec.status();
  return absl::StrJoin(Fields(*spec), "\n", absl::PairFormatter(": "));
}

std::string SpecDifference(const v1::ModelSpec& here, const v1::ModelSpec& there) {
  absl::StatusOr<ModelSpec> a = ModelSpecFromProto(here);
  absl::StatusOr<ModelSpec> b = ModelSpecFromProto(there);
  if (!a.ok()) return absl::StrCat("here: ", a.status().message());
  if (!b.ok()) return absl::StrCat("there: ", b.status().message());
  const auto own = Fields(*a);
  const auto other = Fields(*b);
  std::vector<std::string> differences;
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].second == other[i].second) continue;
    differences.push_back(
        absl::StrCat(own[i].first, ": ", own[i].second, " here, ", other[i].second, " there"));
  }
  return absl::StrJoin(differences, "; ");
}

}  // namespace ccs
