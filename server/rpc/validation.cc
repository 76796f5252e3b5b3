#include "server/rpc/validation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/engine/error_info.h"
#include "server/engine/slice_digest.h"
#include "server/rpc/tensor.h"

namespace ccs {
namespace {

constexpr size_t kMaxNameBytes = 256;  // of run and write ids
constexpr int kMaxTrainers = 65536;
constexpr int kMaxNeighbours = 1024;

absl::Status Invalid(const char* reason, absl::string_view message) {
  return WithErrorInfo(absl::InvalidArgumentError(message), {.reason = reason});
}

absl::Status Exhausted(const char* reason, absl::string_view message) {
  return WithErrorInfo(absl::ResourceExhaustedError(message), {.reason = reason});
}

absl::Status CheckName(const std::string& name, absl::string_view field) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return absl::OkStatus();
  return Invalid("bad_name",
                 absl::StrCat(field, " has ", name.size(), " bytes; 1 to ", kMaxNameBytes, " are needed"));
}

absl::StatusOr<kernels::Margin> ParseMargin(const v1::Margin& margin, bool normalise_features) {
  const kernels::Margin parsed{.m1 = margin.m1(), .m2 = margin.m2(), .m3 = margin.m3()};
  const std::string values = absl::StrCat("margin (", parsed.m1, ", ", parsed.m2, ", ", parsed.m3, ")");
  if (!std::isfinite(parsed.m1) || !std::isfinite(parsed.m2) || !std::isfinite(parsed.m3)) {
    return Invalid("bad_margin", absl::StrCat(values, " is not finite"));
  }
  if (parsed.m1 <= 0) return Invalid("bad_margin", absl::StrCat(values, " has m1 <= 0; 1 is no multiplier"));
  if (parsed.needs_arccos() && !normalise_features) {
    return Invalid("bad_margin", absl::StrCat(values,
                                              " is on the angle, which needs normalise_features; without it "
                                              "only m3 may differ from (1, 0, 0)"));
  }
  return parsed;
}

}  // namespace

RequestValidator::RequestValidator(const RequestRules& rules)
    : rules_(rules), own_(ClassRangeOf(rules_.spec.num_classes, rules_.num_shards, rules_.rank)) {}

absl::Status RequestValidator::OpenRun(const v1::OpenRunRequest& request) const {
  if (absl::Status status = CheckName(request.run_id(), "run_id"); !status.ok()) return status;
  if (request.num_trainers() < 1 || request.num_trainers() > kMaxTrainers) {
    return Invalid("bad_trainer", absl::StrCat("num_trainers ", request.num_trainers(), " is outside [1, ",
                                               kMaxTrainers, "]"));
  }
  if (request.trainer_rank() < 0 || request.trainer_rank() >= request.num_trainers()) {
    return Invalid("bad_trainer", absl::StrCat("trainer_rank ", request.trainer_rank(), " is outside [0, ",
                                               request.num_trainers(), ")"));
  }
  if (request.start_nonce() == 0) {
    return Invalid("bad_trainer", "start_nonce is 0; choose one at random for every start of the trainer");
  }
  if (request.has_resume_step() && request.resume_step() < 0) {
    return Invalid("bad_step", absl::StrCat("resume_step ", request.resume_step(), " is negative"));
  }
  return absl::OkStatus();
}

absl::Status RequestValidator::CloseRun(const v1::CloseRunRequest& request) const {
  return CheckName(request.run_id(), "run_id");
}

absl::StatusOr<Slice> RequestValidator::Step(const v1::StepRequest& request) const {
  Slice slice;
  slice.run_id = request.run_id();
  slice.incarnation = request.incarnation();
  slice.call = request.call();
  slice.lineage = request.lineage();
  slice.trainer_rank = request.trainer_rank();
  slice.step = request.step();

  absl::StatusOr<StepParams> params = Params(request.params());
  if (!params.ok()) return params.status();
  slice.params = *params;
  if (!std::isfinite(request.gradient_scale())) {
    return Invalid("bad_gradient_scale", absl::StrCat("gradient_scale is ", request.gradient_scale()));
  }
  slice.gradient_scale = request.gradient_scale() == 0 ? 1 : request.gradient_scale();

  absl::StatusOr<std::vector<float>> features = Features(request.features(), "features");
  if (!features.ok()) return features.status();
  slice.features = *std::move(features);
  absl::StatusOr<std::vector<int64_t>> labels = Labels(request.labels(), request.features().rows());
  if (!labels.ok()) return labels.status();
  slice.labels = *std::move(labels);
  slice.digest = SliceDigest(slice);
  return slice;
}

absl::StatusOr<RequestValidator::Query> RequestValidator::Evaluate(const v1::EvaluateRequest& request) const {
  Query query;
  if (request.has_sample_rate()) {
    if (!std::isfinite(request.sample_rate()) || request.sample_rate() < 0) {
      return Invalid("bad_sample_rate", absl::StrCat("sample_rate ", request.sample_rate(),
                                                     " is not a finite number of at least 0"));
    }
    query.sample_rate = request.sample_rate();
  }
  absl::StatusOr<std::vector<float>> features = Features(request.features(), "features");
  if (!features.ok()) return features.status();
  query.features = *std::move(features);
  absl::StatusOr<std::vector<int64_t>> labels = Labels(request.labels(), request.features().rows());
  if (!labels.ok()) return labels.status();
  query.labels = *std::move(labels);
  return query;
}

absl::StatusOr<std::vector<float>> RequestValidator::Nearest(const v1::NearestRequest& request) const {
  if (request.k() < 1 || request.k() > kMaxNeighbours) {
    return Invalid("bad_k", absl::StrCat("k ", request.k(), " is outside [1, ", kMaxNeighbours, "]"));
  }
  return Features(request.queries(), "queries");
}

absl::StatusOr<std::vector<int64_t>> RequestValidator::ReadCentres(
    const v1::ReadCentresRequest& request) const {
  std::vector<int64_t> class_ids(request.class_ids().begin(), request.class_ids().end());
  const int64_t row_bytes = int64_t{4} * rules_.spec.dim * (request.with_momentum() ? 2 : 1);
  const int64_t rows = static_cast<int64_t>(class_ids.size());
  if (rows * row_bytes > rules_.max_message_bytes) {
    return Exhausted("reply_too_large",
                     absl::StrCat(rows, " rows are ", rows * row_bytes, " bytes; a message may have ",
                                  rules_.max_message_bytes, ": ask for at most ",
                                  rules_.max_message_bytes / row_bytes, " rows at a time"));
  }
  if (absl::Status status = CheckOwned(class_ids); !status.ok()) return status;
  return class_ids;
}

absl::StatusOr<RequestValidator::Centres> RequestValidator::WriteCentres(
    const v1::WriteCentresRequest& request) const {
  if (absl::Status status = CheckName(request.write_id(), "write_id"); !status.ok()) return status;
  if (request.has_commit_rows() && request.commit_rows() < 0) {
    return Invalid("bad_commit_rows", absl::StrCat("commit_rows ", request.commit_rows(), " is negative"));
  }
  Centres centres;
  centres.class_ids.assign(request.class_ids().begin(), request.class_ids().end());
  if (absl::Status status = CheckOwned(centres.class_ids); !status.ok()) return status;
  const int64_t rows = request.class_ids_size();
  if (request.centres().rows() != rows) {
    return Invalid("wrong_shape",
                   absl::StrCat(rows, " class_ids come with ", request.centres().rows(), " centres"));
  }
  absl::flat_hash_map<int64_t, int64_t> first_row;
  for (int64_t row = 0; row < rows; ++row) {
    const auto [first, is_new] = first_row.emplace(centres.class_ids[row], row);
    if (is_new) continue;
    return Invalid("repeated_class", absl::StrCat("class ", centres.class_ids[row], " is in row ",
                                                  first->second, " and again in row ", row));
  }
  absl::StatusOr<std::vector<float>> values = DecodeTensor(request.centres(), rules_.spec.dim, "centres");
  if (!values.ok()) return values.status();
  centres.values = *std::move(values);
  for (int64_t row = 0; row < rows; ++row) {
    const float* begin = centres.values.data() + row * rules_.spec.dim;
    double squares = 0;
    for (int column = 0; column < rules_.spec.dim; ++column) squares += double{begin[column]} * begin[column];
    if (std::sqrt(squares) < 1e-12) {
      return Invalid("zero_centre", absl::StrCat("centres row ", row, " (class ", centres.class_ids[row],
                                                 ") has no length, and so no direction"));
    }
  }
  return centres;
}

absl::StatusOr<std::vector<float>> RequestValidator::Features(const v1::Tensor& tensor,
                                                              const char* what) const {
  if (tensor.rows() > rules_.spec.max_batch) {
    return Exhausted("batch_too_large",
                     absl::StrCat(what, " have ", tensor.rows(), " rows; the model's max_batch is ",
                                  rules_.spec.max_batch));
  }
  return DecodeTensor(tensor, rules_.spec.dim, what);
}

absl::StatusOr<StepParams> RequestValidator::Params(const v1::StepParams& params) const {
  StepParams parsed;
  parsed.learning_rate = params.learning_rate();
  if (!std::isfinite(parsed.learning_rate) || parsed.learning_rate < 0) {
    return Invalid("bad_learning_rate", absl::StrCat("learning_rate ", parsed.learning_rate,
                                                     " is not a finite number of at least 0"));
  }
  if (params.has_scale()) {
    if (!std::isfinite(params.scale()) || params.scale() <= 0) {
      return Invalid("bad_scale", absl::StrCat("scale ", params.scale(), " is not a finite number above 0"));
    }
    parsed.scale = params.scale();
  }
  if (params.has_margin()) {
    absl::StatusOr<kernels::Margin> margin = ParseMargin(params.margin(), rules_.spec.normalise_features);
    if (!margin.ok()) return margin.status();
    parsed.margin = *margin;
  }
  parsed.checkpoint = params.checkpoint();
  if (parsed.checkpoint && !rules_.has_checkpoint_dir) {
    return WithErrorInfo(
        absl::FailedPreconditionError(
            "the step asks for a checkpoint, but the shards were started without --checkpoint_dir"),
        {.reason = "no_checkpoint_dir"});
  }
  return parsed;
}

absl::StatusOr<std::vector<int64_t>> RequestValidator::Labels(
    const google::protobuf::RepeatedField<int64_t>& labels, int64_t rows) const {
  if (labels.size() != rows) {
    return Invalid("wrong_shape",
                   absl::StrCat(rows, " rows of features come with ", labels.size(), " labels"));
  }
  const int64_t num_classes = rules_.spec.num_classes;
  for (int row = 0; row < labels.size(); ++row) {
    if (labels[row] >= -1 && labels[row] < num_classes) continue;
    return Invalid("label_out_of_range",
                   absl::StrCat("label ", labels[row], " of row ", row, " is outside [0, ", num_classes,
                                "); -1 is unlabelled"));
  }
  return std::vector<int64_t>(labels.begin(), labels.end());
}

absl::Status RequestValidator::CheckOwned(const std::vector<int64_t>& class_ids) const {
  const int64_t num_classes = rules_.spec.num_classes;
  const auto foreign =
      std::find_if(class_ids.begin(), class_ids.end(), [this](int64_t id) { return !own_.contains(id); });
  if (foreign == class_ids.end()) return absl::OkStatus();
  if (*foreign < 0 || *foreign >= num_classes) {
    return Invalid("class_out_of_range",
                   absl::StrCat("class ", *foreign, " is outside [0, ", num_classes, ")"));
  }
  int owner = 0;
  while (!ClassRangeOf(num_classes, rules_.num_shards, owner).contains(*foreign)) ++owner;
  return Invalid("class_not_owned",
                 absl::StrCat("class ", *foreign, " is on shard ", owner, "; this is shard ", rules_.rank,
                              ", with [", own_.start, ", ", own_.start + own_.count, ")"));
}

}  // namespace ccs
