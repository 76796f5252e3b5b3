#include "kernels/checks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace ccs::kernels {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 40;  // far beyond any machine
constexpr int64_t kMaxDim = 1 << 16;
constexpr int64_t kMaxBatch = 1 << 20;
constexpr int64_t kMaxShards = 1 << 16;
constexpr int64_t kMaxThreads = 1024;

absl::Status CheckWithin(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, "; it must be in [", least, ", ", most, "]"));
}

}  // namespace

absl::Status CheckSizes(const ShardConfig& config) {
  for (const absl::Status& status : {
           CheckWithin("num_local", config.num_local, 0, kMaxRows),
           CheckWithin("class_start", config.class_start, 0, INT64_MAX - kMaxRows),
           CheckWithin("dim", config.dim, 1, kMaxDim),
           CheckWithin("num_shards", config.num_shards, 1, kMaxShards),
           CheckWithin("max_batch", config.max_batch, 1, kMaxBatch),
           CheckWithin("threads", config.threads, 1, kMaxThreads),
           CheckWithin("kept_logits_bytes", config.kept_logits_bytes, 0, INT64_MAX),
       }) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckRange(int64_t first_row, int64_t num_rows, const ShardConfig& config) {
  if (first_row >= 0 && num_rows >= 0 && first_row <= config.num_local - num_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rows [", first_row, ", +", num_rows,
                                                 ") are not within the ", config.num_local,
                                                 " rows of this shard"));
}

absl::Status CheckLabels(absl::Span<const int64_t> labels, int max_batch) {
  if (labels.size() > static_cast<size_t>(max_batch)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", labels.size(), " rows; at most ", max_batch, " were provided for"));
  }
  const auto bad = std::find_if(labels.begin(), labels.end(), [](int64_t label) { return label < -1; });
  if (bad == labels.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("label ", *bad, " of row ", bad - labels.begin()));
}

absl::Status CheckFinite(double norm, int batch_row) {
  if (std::isfinite(norm)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("features of row ", batch_row, " are not finite"));
}

absl::Status CheckHead(const Head& head, bool normalise_features) {
  const Margin& margin = head.margin;
  if (!(head.scale > 0) || !std::isfinite(head.scale) || std::isnan(head.filter_threshold) ||
      !std::isfinite(margin.m1) || !std::isfinite(margin.m2) || !std::isfinite(margin.m3)) {
    return absl::InvalidArgumentError(
        "the head needs a positive scale, finite margins and a filter threshold");
  }
  if (margin.needs_arccos() && !normalise_features) {
    return absl::InvalidArgumentError("a margin on the angle (m1, m2) needs normalised features");
  }
  return absl::OkStatus();
}

absl::Status CheckSample(absl::Span<const int64_t> rows, const ShardConfig& config) {
  int64_t previous = -1;
  for (int64_t row : rows) {
    if (row <= previous || row >= config.num_local) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row, " after ", previous,
                                                     ": rows must be sorted, without repeats, below ",
                                                     config.num_local));
    }
    previous = row;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TargetColumn(int64_t label, int batch_row, absl::Span<const int64_t> rows,
                                     const ShardConfig& config) {
  if (label < config.class_start || label - config.class_start >= config.num_local) return -1;
  const int64_t local = label - config.class_start;
  const auto found = std::lower_bound(rows.begin(), rows.end(), local);
  if (found == rows.end() || *found != local) {
    return absl::InvalidArgumentError(
        absl::StrCat("class ", label, " of row ", batch_row, " is not among the sampled rows"));
  }
  return found - rows.begin();
}

absl::Status CheckBatchRange(int first_row, int num_rows, int batch) {
  if (first_row >= 0 && num_rows >= 0 && first_row <= batch - num_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rows [", first_row, ", +", num_rows, ") are not within the batch of ", batch));
}

}  // namespace ccs::kernels
