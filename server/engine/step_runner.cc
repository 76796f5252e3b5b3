#include "server/engine/step_runner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/fault_point.h"

namespace ccs {
namespace {

// Time since the last call, or since construction.
class Stopwatch {
 public:
  absl::Duration Lap() {
    const absl::Time now = absl::Now();
    return now - std::exchange(last_, now);
  }

 private:
  absl::Time last_ = absl::Now();
};

}  // namespace

StepRunner::StepRunner(const EngineOptions& options, const EngineParts& parts, ChangeLog* log,
                       ProgressBoard* progress)
    : options_(options),
      backend_(parts.backend),
      assembler_(parts.assembler),
      log_(log),
      progress_(progress),
      sampler_(backend_->config().num_local, options.spec.sample_rate, options.spec.seed, options.rank) {}

absl::StatusOr<StepObservation> StepRunner::Run(const StepOperation& operation, const Position& position,
                                                Exchange* exchange, const BeforeUpdate& before_update) {
  const Slices slices = assembler_->ChosenSlices(operation.step);
  if (absl::Status status = CheckRows(operation, slices, exchange->rank()); !status.ok()) return status;
  StepObservation seen;
  seen.step = operation.step;
  seen.learning_rate = operation.params.learning_rate;
  seen.batch_rows = batch_rows_;
  seen.own_rows = own_rows_;
  seen.phases.wait = assembler_->TimeToGo(operation.step);
  Stopwatch watch;
  log_->Append(position, StepChange{operation, slices});

  progress_->SetActivity("gather");
  if (absl::Status status = Gather(operation, slices, exchange); !status.ok()) return status;
  seen.labelled_rows =
      std::count_if(labels_.begin(), labels_.end(), [](int64_t label) { return label >= 0; });
  seen.phases.gather = watch.Lap();

  progress_->SetActivity("sample");
  const absl::Span<const int64_t> sampled = Sample(operation.step);
  seen.sampled_classes = static_cast<int64_t>(sampled.size());
  seen.positives = positives_;
  seen.phases.sample = watch.Lap();

  progress_->SetActivity("pass 1");
  if (absl::Status status = backend_->SetBatch(labels_); !status.ok()) return status;
  if (absl::Status status = backend_->Pass1(HeadOf(operation.params), sampled); !status.ok()) return status;
  seen.phases.pass1 = watch.Lap();

  // Whoever has this shard's part of the step may count on its being on disk.
  progress_->SetActivity("log");
  if (absl::Status status = log_->Wait(); !status.ok()) return status;
  seen.phases.log = watch.Lap();

  progress_->SetActivity("exchange");
  const absl::StatusOr<double> loss = Combine(operation, exchange);
  if (!loss.ok()) return loss.status();
  seen.loss = *loss;
  seen.phases.exchange = watch.Lap();

  progress_->SetActivity("reply");
  if (absl::Status status = Answer(slices, seen); !status.ok()) return status;
  seen.phases.reply = watch.Lap();

  progress_->SetActivity("staging");
  before_update(sampled);
  seen.phases.staging = watch.Lap();

  progress_->SetActivity("pass 2");
  const kernels::UpdateParams update = {operation.params.learning_rate, options_.spec.momentum,
                                        options_.spec.weight_decay};
  ReachFaultPoint("pass2/before");
  if (absl::Status status = backend_->Pass2(update); !status.ok()) return status;
  ReachFaultPoint("pass2/after");
  seen.phases.pass2 = watch.Lap();
  progress_->SetLoss(seen.loss);
  return seen;
}

absl::Status StepRunner::CheckRows(const StepOperation& operation, const Slices& slices, int rank) {
  const std::vector<int>& rows = operation.rows_per_rank;
  own_rows_ = 0;
  for (const auto& slice : slices) own_rows_ += slice->rows();
  if (static_cast<int>(rows.size()) != options_.num_shards || rows[rank] != own_rows_) {
    return absl::InternalError(absl::StrCat("step ", operation.step, ": the ", own_rows_, " rows of shard ",
                                            rank, " are not those that were announced"));
  }
  first_own_row_ = std::accumulate(rows.begin(), rows.begin() + rank, 0);
  batch_rows_ = std::accumulate(rows.begin(), rows.end(), 0);
  if (batch_rows_ > options_.spec.max_batch) {
    return absl::InternalError(absl::StrCat("step ", operation.step, " was started with ", batch_rows_,
                                            " rows, max_batch is ", options_.spec.max_batch));
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Gather(const StepOperation& operation, const Slices& slices, Exchange* exchange) {
  own_features_.clear();
  own_labels_.clear();
  for (const auto& slice : slices) {
    own_features_.insert(own_features_.end(), slice->features.begin(), slice->features.end());
    own_labels_.insert(own_labels_.end(), slice->labels.begin(), slice->labels.end());
  }
  labels_.resize(batch_rows_);
  ReachFaultPoint("exchange/features");
  absl::Status status = exchange->GatherRows(own_features_.data(), backend_->features(),
                                             operation.rows_per_rank, options_.spec.dim * sizeof(float));
  if (!status.ok()) return status;
  ReachFaultPoint("exchange/labels");
  return exchange->GatherRows(own_labels_.data(), labels_.data(), operation.rows_per_rank, sizeof(int64_t));
}

absl::Span<const int64_t> StepRunner::Sample(int64_t step) {
  const kernels::ShardConfig& shard = backend_->config();
  const std::vector<int64_t> positives = kernels::LocalPositives(labels_, shard.class_start, shard.num_local);
  positives_ = static_cast<int64_t>(positives.size());
  if (!options_.sampled_rows) return sampler_.Draw(step, positives);
  replayed_rows_ = options_.sampled_rows(step);
  return replayed_rows_;
}

absl::StatusOr<double> StepRunner::Combine(const StepOperation& operation, Exchange* exchange) {
  ReachFaultPoint("exchange/partials");
  absl::Status status = exchange->GatherEqual(backend_->partials(), backend_->gathered_partials(),
                                              batch_rows_ * sizeof(kernels::RowPartial));
  if (!status.ok()) return status;
  absl::StatusOr<double> loss = backend_->Combine();
  if (!loss.ok()) return loss;
  own_gradient_.resize(static_cast<size_t>(own_rows_) * options_.spec.dim);
  ReachFaultPoint("exchange/gradients");
  status = exchange->ReduceScatterRows(backend_->gradient_sum(), own_gradient_.data(),
                                       operation.rows_per_rank, options_.spec.dim);
  if (!status.ok()) return status;
  return loss;
}

absl::Status StepRunner::Answer(const Slices& slices, const StepObservation& seen) {
  absl::Status status = backend_->FinishFeatureGradient(first_own_row_, own_rows_, own_gradient_.data());
  if (!status.ok()) return status;
  std::vector<SliceReply> replies;
  auto gradient = own_gradient_.begin();
  for (const auto& slice : slices) {
    const auto end = gradient + static_cast<std::ptrdiff_t>(slice->features.size());
    SliceReply& reply = replies.emplace_back();
    reply.step = seen.step;
    reply.loss = seen.loss;
    reply.statistics = {seen.batch_rows, seen.labelled_rows, seen.sampled_classes, seen.positives};
    reply.feature_grad.resize(slice->features.size());
    std::transform(gradient, end, reply.feature_grad.begin(),
                   [scale = slice->gradient_scale](float value) { return scale * value; });
    gradient = end;
  }
  ReachFaultPoint("reply/before");
  assembler_->Complete(seen.step, std::move(replies));
  ReachFaultPoint("reply/after");
  return absl::OkStatus();
}

kernels::Head StepRunner::HeadOf(const StepParams& params) const {
  kernels::Head head = options_.spec.head;
  head.scale = params.scale.value_or(head.scale);
  head.margin = params.margin.value_or(head.margin);
  return head;
}

}  // namespace ccs
