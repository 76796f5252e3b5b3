#include "server/cluster/step_gate.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/messages.h"
#include "server/engine/error_info.h"
#include "server/engine/layout.h"

namespace ccs {
namespace {

// Time for the refusal to travel back before the trainer's own deadline.
absl::Duration Margin(absl::Duration wait) { return std::min(wait / 10, absl::Milliseconds(500)); }

std::string ToText(const std::optional<float>& value) {
  return value ? absl::StrCat(*value) : std::string("the spec's");
}

std::string ToText(const std::optional<kernels::Margin>& margin) {
  return margin ? absl::StrCat("(", margin->m1, ", ", margin->m2, ", ", margin->m3, ")")
                : std::string("the spec's");
}

struct Difference {
  std::string field;
  std::string first;
  std::string second;
};

// The first parameter in which two trainers differ.
std::optional<Difference> FindDifference(const StepParams& a, const StepParams& b) {
  if (a.learning_rate != b.learning_rate) {
    return Difference{"learning_rate", absl::StrCat(a.learning_rate), absl::StrCat(b.learning_rate)};
  }
  if (a.scale != b.scale) return Difference{"scale", ToText(a.scale), ToText(b.scale)};
  if (a.margin != b.margin) return Difference{"margin", ToText(a.margin), ToText(b.margin)};
  if (a.checkpoint != b.checkpoint) {
    return Difference{"checkpoint", a.checkpoint ? "true" : "false", b.checkpoint ? "true" : "false"};
  }
  return std::nullopt;
}

}  // namespace

StepGate::StepGate(const StepGateOptions& options, int64_t applied_step)
    : options_(options), step_(applied_step + 1) {}

void StepGate::SetRun(const RunState& run) {
  run_ = run;
  expected_ = 0;
  for (int rank = 0; rank < options_.num_shards && run_.num_trainers() > 0; ++rank) {
    expected_ += TrainersAtHome(rank, options_.num_shards, run_.num_trainers()).size();
  }
  std::erase_if(arrivals_,
                [this](const auto& item) { return !Wanted(item.first.second, item.second.slice); });
}

bool StepGate::Wanted(int rank, const v1::SliceReady& slice) const {
  return slice.step() == step_ && slice.attempt() == attempt_ && slice.run_id() == run_.run_id &&
         slice.trainer_rank() >= 0 && slice.trainer_rank() < run_.num_trainers() &&
         slice.incarnation() == run_.incarnations[slice.trainer_rank()] &&
         IsHome(rank, options_.num_shards, slice.trainer_rank(), run_.num_trainers());
}

void StepGate::Add(int rank, const v1::SliceReady& slice, absl::Time now) {
  if (!Wanted(rank, slice)) return;
  if (arrivals_.empty()) first_arrival_ = now;
  const absl::Duration wait = absl::Milliseconds(std::max<int64_t>(slice.wait_ms(), 0));
  const auto [item, is_new] = arrivals_.try_emplace({slice.trainer_rank(), rank});
  const v1::SliceReady& known = item->second.slice;
  if (!is_new && std::pair(known.version(), known.call()) >= std::pair(slice.version(), slice.call())) return;
  item->second = {slice, now + wait - Margin(wait)};
}

std::optional<absl::Status> StepGate::Decide(absl::Time now) const {
  if (arrivals_.empty()) return std::nullopt;
  if (arrivals_.size() < expected_ || !CallsAreWhole()) {
    absl::Status late = CheckDeadline(now);
    return late.ok() ? std::nullopt : std::optional(std::move(late));
  }
  if (absl::Status agreement = CheckAgreement(); !agreement.ok()) return agreement;
  return CheckRows();
}

bool StepGate::CallsAreWhole() const {
  return std::adjacent_find(arrivals_.begin(), arrivals_.end(), [](const auto& a, const auto& b) {
           return a.first.first == b.first.first && a.second.slice.call() != b.second.slice.call();
         }) == arrivals_.end();
}

absl::Status StepGate::CheckDeadline(absl::Time now) const {
  absl::Time deadline = first_arrival_ + options_.step_timeout;
  for (const auto& [key, arrival] : arrivals_) deadline = std::min(deadline, arrival.deadline);
  if (now < deadline) return absl::OkStatus();
  ErrorInfo info;
  info.reason = "missing_trainers";
  info.missing_trainers = MissingTrainers();
  return WithErrorInfo(absl::DeadlineExceededError(absl::StrCat(
                           "step ", step_, ": missing trainers ", absl::StrJoin(info.missing_trainers, ", "),
                           " of ", run_.num_trainers(), " after ", absl::FormatDuration(now - first_arrival_),
                           "; nothing has changed")),
                       info);
}

absl::Status StepGate::CheckAgreement() const {
  const auto& [first_key, first] = *arrivals_.begin();
  const StepParams params = StepParamsFromProto(first.slice.params());
  for (const auto& [key, arrival] : arrivals_) {
    const auto difference = FindDifference(params, StepParamsFromProto(arrival.slice.params()));
    if (!difference) continue;
    return WithErrorInfo(absl::FailedPreconditionError(absl::StrCat(
                             "step ", step_, ": trainers disagree on ", difference->field, ": trainer ",
                             first_key.first, " says ", difference->first, ", trainer ", key.first, " says ",
                             difference->second, "; nothing has changed")),
                         {.reason = "trainers_disagree"});
  }
  if (params.checkpoint && !options_.can_checkpoint) {
    return WithErrorInfo(
        absl::FailedPreconditionError(absl::StrCat(
            "step ", step_, " asks for a checkpoint, but the servers run without --checkpoint_dir")),
        {.reason = "no_checkpoint_dir"});
  }
  return absl::OkStatus();
}

absl::Status StepGate::CheckRows() const {
  int64_t rows = 0;
  for (const auto& [key, arrival] : arrivals_) rows += arrival.slice.rows();
  if (rows <= options_.max_batch) return absl::OkStatus();
  return WithErrorInfo(
      absl::ResourceExhaustedError(absl::StrCat("step ", step_, ": the trainers' slices have ", rows,
                                                " rows together, max_batch is ", options_.max_batch)),
      {.reason = "batch_too_large"});
}

v1::StepOp StepGate::Operation(int rank) const {
  v1::StepOp operation;
  operation.set_step(step_);
  *operation.mutable_params() = arrivals_.begin()->second.slice.params();
  std::vector<int> rows(options_.num_shards, 0);
  for (const auto& [key, arrival] : arrivals_) {
    const auto& [trainer, home] = key;
    rows[home] += arrival.slice.rows();
    if (home != rank) continue;
    v1::SliceChoice* choice = operation.add_slices();
    choice->set_trainer_rank(trainer);
    choice->set_version(arrival.slice.version());
  }
  operation.mutable_rows_per_rank()->Assign(rows.begin(), rows.end());
  return operation;
}

bool StepGate::asks_for_checkpoint() const {
  return !arrivals_.empty() && arrivals_.begin()->second.slice.params().checkpoint();
}

void StepGate::Passed() {
  arrivals_.clear();
  ++step_;
  attempt_ = 1;
}

void StepGate::Failed() {
  arrivals_.clear();
  ++attempt_;
}

std::vector<int> StepGate::MissingTrainers() const {
  std::vector<int> missing;
  if (arrivals_.empty()) return missing;
  for (int trainer = 0; trainer < run_.num_trainers(); ++trainer) {
    std::set<int64_t> calls;
    bool is_whole = true;
    for (int rank = 0; rank < options_.num_shards; ++rank) {
      if (!IsHome(rank, options_.num_shards, trainer, run_.num_trainers())) continue;
      const auto arrival = arrivals_.find({trainer, rank});
      is_whole = is_whole && arrival != arrivals_.end();
      if (is_whole) calls.insert(arrival->second.slice.call());
    }
    if (!is_whole || calls.size() > 1) missing.push_back(trainer);
  }
  return missing;
}

}  // namespace ccs
