#include "server/engine/step_assembler.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/error_info.h"
#include "server/engine/layout.h"
#include "server/fault_point.h"

namespace ccs {
namespace {

// Payloads of one trainer for one attempt at a step; each holds its features.
constexpr size_t kMaxVersions = 8;

absl::Status Refusal(absl::StatusCode code, const std::string& message, const ErrorInfo& info) {
  return WithErrorInfo(absl::Status(code, message), info);
}

absl::Status StaleIncarnation(int trainer_rank) {
  return Refusal(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("trainer ", trainer_rank, " has not opened the run, or was started again since"),
      {.reason = "stale_incarnation"});
}

absl::Status PayloadDiffers(int trainer_rank, int64_t step) {
  return Refusal(absl::StatusCode::kFailedPrecondition,
                 absl::StrCat("trainer ", trainer_rank, " sent another payload for step ", step,
                              ", which counts: repeat that one, or open the run again"),
                 {.reason = "payload_differs"});
}

}  // namespace

StepAssembler::Answers::~Answers() {
  for (auto& [done, reply] : due_) done(std::move(reply));
}

void StepAssembler::Answers::AddAll(std::vector<Done> waiting, const absl::StatusOr<Reply>& reply) {
  for (Done& done : waiting) Add(std::move(done), reply);
}

StepAssembler::StepAssembler(int rank, int num_shards, ControlPlane* control)
    : rank_(rank),
      num_shards_(num_shards),
      control_(control),
      not_serving_(absl::UnavailableError("the shard group is forming")) {}

void StepAssembler::StartEpoch(Position position) {
  std::lock_guard lock(mutex_);
  not_serving_ = absl::OkStatus();
  attempt_ = 1;
  if (position.lineage == position_.lineage && position.step == position_.step) return;
  position_ = position;
  run_ = {};
  chosen_.clear();
}

void StepAssembler::Restore(const Position& position, const RunState& run,
                            const std::vector<AnsweredSlice>& answers) {
  std::lock_guard lock(mutex_);
  position_ = position;
  run_ = run;
  chosen_.clear();
  ChosenStep& last = chosen_[position.step];
  last.completed = true;
  for (const AnsweredSlice& answer : answers) {
    last.slices.push_back({answer.run_id, answer.trainer_rank, answer.digest, nullptr, {}, answer.reply});
  }
}

void StepAssembler::Replay(int64_t step, const std::vector<std::shared_ptr<const Slice>>& slices) {
  std::lock_guard lock(mutex_);
  ChosenStep& chosen = chosen_[step];
  for (const auto& slice : slices) {
    chosen.slices.push_back({run_.run_id, slice->trainer_rank, slice->digest, slice, {}, nullptr});
  }
  position_.step = step;
}

void StepAssembler::EndEpoch(const absl::Status& status) {
  Answers answers;
  std::lock_guard lock(mutex_);
  not_serving_ = status;
  DropCandidates(status, &answers);
  while (!chosen_.empty() && !chosen_.rbegin()->second.completed) {
    const auto unfinished = std::prev(chosen_.end());
    for (Chosen& slice : unfinished->second.slices) answers.AddAll(std::move(slice.waiting), status);
    position_.step = unfinished->first - 1;
    chosen_.erase(unfinished);
  }
}

void StepAssembler::SetRun(const RunState& run) {
  Answers answers;
  std::lock_guard lock(mutex_);
  run_ = run;
  for (auto it = candidates_.begin(); it != candidates_.end();) {
    // All versions of a trainer come from one incarnation, since the others were dropped here.
    const absl::Status status = Check(*it->second.front().slice);
    if (status.ok()) {
      ++it;
      continue;
    }
    for (Candidate& candidate : it->second) answers.AddAll(std::move(candidate.waiting), status);
    it = candidates_.erase(it);
  }
}

absl::Status StepAssembler::Check(const Slice& slice) {
  if (!not_serving_.ok()) return not_serving_;
  if (slice.lineage != position_.lineage) {
    return Refusal(absl::StatusCode::kAborted,
                   absl::StrCat("lineage ", slice.lineage, " was abandoned; the cluster is at step ",
                                position_.step, " of lineage ", position_.lineage, ": open the run again"),
                   {.reason = "abandoned_lineage", .position = position_});
  }
  if (slice.run_id.empty() || slice.run_id != run_.run_id) {
    return Refusal(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("run '", slice.run_id, "' is not open: open it first"),
                   {.reason = "run_not_open"});
  }
  if (slice.trainer_rank < 0 || slice.trainer_rank >= run_.num_trainers()) {
    return Refusal(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("trainer_rank ", slice.trainer_rank, " is not in a run of ",
                                run_.num_trainers(), " trainers"),
                   {.reason = "unknown_trainer"});
  }
  if (!IsHome(rank_, num_shards_, slice.trainer_rank, run_.num_trainers())) {
    return Refusal(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("trainer ", slice.trainer_rank, " of ", run_.num_trainers(),
                                " is not at home on shard ", rank_, " of ", num_shards_),
                   {.reason = "not_at_home"});
  }
  const uint64_t incarnation = run_.incarnations[slice.trainer_rank];
  if (incarnation == 0 || slice.incarnation != incarnation) return StaleIncarnation(slice.trainer_rank);
  const int64_t expected = position_.step + 1;
  if (slice.step != expected && FindChosen(slice) == nullptr) {
    return Refusal(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("step ", slice.step, " was sent, step ", expected, " of lineage ",
                                position_.lineage, " is expected"),
                   {.reason = "unexpected_step", .position = position_, .expected_step = expected});
  }
  return absl::OkStatus();
}

void StepAssembler::Submit(Slice slice, Done done) {
  Answers answers;
  std::lock_guard lock(mutex_);
  if (absl::Status status = Check(slice); !status.ok()) {
    answers.Add(std::move(done), std::move(status));
  } else if (slice.step > position_.step) {
    AddCandidate(std::move(slice), std::move(done), &answers);
  } else {
    JoinChosen(slice, std::move(done), &answers);
  }
}

void StepAssembler::AddCandidate(Slice slice, Done done, Answers* answers) {
  if (candidates_.empty()) first_arrival_ = absl::Now();
  std::vector<Candidate>& versions = candidates_[slice.trainer_rank];
  if (!versions.empty() && versions.back().slice->digest == slice.digest) {
    Candidate& same = versions.back();
    same.waiting.push_back(std::move(done));
    if (slice.call <= same.slice->call) return;
    same.slice = std::make_shared<const Slice>(std::move(slice));
    return control_->SliceReady(*same.slice, same.version, attempt_);
  }
  if (!versions.empty() && slice.call < versions.back().slice->call) {
    answers->Add(std::move(done),
                 PayloadDiffers(slice.trainer_rank, slice.step));  // late, of a call given up
    return;
  }
  if (versions.size() == kMaxVersions) {
    answers->Add(std::move(done),
                 Refusal(absl::StatusCode::kResourceExhausted,
                         absl::StrCat("trainer ", slice.trainer_rank, " has sent ", kMaxVersions,
                                      " payloads for step ", slice.step, " already"),
                         {.reason = "too_many_payloads"}));
    return;
  }
  // Earlier versions stay until Go: the coordinator may have chosen one of them already.
  versions.push_back(
      {static_cast<int>(versions.size()) + 1, std::make_shared<const Slice>(std::move(slice)), {}});
  versions.back().waiting.push_back(std::move(done));
  ReachFaultPoint("step/before_ready");
  // Under the lock, so that versions are announced in their order.
  control_->SliceReady(*versions.back().slice, versions.back().version, attempt_);
}

StepAssembler::Chosen* StepAssembler::FindChosen(const Slice& slice) {
  const auto step = chosen_.find(slice.step);
  if (step == chosen_.end()) return nullptr;
  for (Chosen& chosen : step->second.slices) {
    if (chosen.trainer_rank == slice.trainer_rank && chosen.run_id == slice.run_id) return &chosen;
  }
  return nullptr;
}

void StepAssembler::JoinChosen(const Slice& slice, Done done, Answers* answers) {
  Chosen& chosen = *FindChosen(slice);
  if (chosen.digest != slice.digest) {
    answers->Add(std::move(done), PayloadDiffers(slice.trainer_rank, slice.step));
  } else if (chosen.reply != nullptr) {
    answers->Add(std::move(done), chosen.reply);
  } else {
    chosen.waiting.push_back(std::move(done));
  }
}

const StepAssembler::Candidate* StepAssembler::FindCandidate(const SliceChoice& choice) const {
  const auto versions = candidates_.find(choice.trainer_rank);
  if (versions == candidates_.end() || choice.version < 1 ||
      choice.version > static_cast<int>(versions->second.size())) {
    return nullptr;
  }
  return &versions->second[choice.version - 1];
}

absl::Status StepAssembler::ChooseSlices(const StepOperation& operation) {
  Answers answers;
  std::lock_guard lock(mutex_);
  if (operation.step != position_.step + 1) {
    return absl::InternalError(
        absl::StrCat("Go for step ", operation.step, " where step ", position_.step + 1, " is next"));
  }
  for (const SliceChoice& choice : operation.slices) {
    if (FindCandidate(choice) == nullptr) {
      return absl::InternalError(absl::StrCat("Go for step ", operation.step, " with version ",
                                              choice.version, " of trainer ", choice.trainer_rank,
                                              "'s slice, which is not here"));
    }
  }
  ChosenStep& step = chosen_[operation.step];
  step.time_to_go = operation.slices.empty() ? absl::ZeroDuration() : absl::Now() - first_arrival_;
  for (const SliceChoice& choice : operation.slices) {
    Candidate& candidate = candidates_[choice.trainer_rank][choice.version - 1];
    step.slices.push_back({candidate.slice->run_id, choice.trainer_rank, candidate.slice->digest,
                           std::move(candidate.slice), std::exchange(candidate.waiting, {}), nullptr});
  }
  for (auto& [trainer, versions] : candidates_) {
    for (Candidate& candidate : versions) {
      answers.AddAll(std::move(candidate.waiting), PayloadDiffers(trainer, operation.step));
    }
  }
  candidates_.clear();
  position_.step = operation.step;
  attempt_ = 1;
  return absl::OkStatus();
}

std::vector<std::shared_ptr<const Slice>> StepAssembler::ChosenSlices(int64_t step) const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Slice>> slices;
  if (const auto chosen = chosen_.find(step); chosen != chosen_.end()) {
    for (const Chosen& slice : chosen->second.slices) slices.push_back(slice.slice);
  }
  return slices;
}

absl::Duration StepAssembler::TimeToGo(int64_t step) const {
  std::lock_guard lock(mutex_);
  const auto chosen = chosen_.find(step);
  return chosen == chosen_.end() ? absl::ZeroDuration() : chosen->second.time_to_go;
}

void StepAssembler::Complete(int64_t step, std::vector<SliceReply> replies) {
  Answers answers;
  std::lock_guard lock(mutex_);
  const auto chosen = chosen_.find(step);
  if (chosen == chosen_.end()) return;  // the epoch has ended meanwhile
  for (size_t i = 0; i < chosen->second.slices.size(); ++i) {
    Chosen& slice = chosen->second.slices[i];
    slice.slice = nullptr;
    slice.reply = std::make_shared<const SliceReply>(std::move(replies[i]));
    answers.AddAll(std::exchange(slice.waiting, {}), slice.reply);
  }
  chosen->second.completed = true;
  chosen_.erase(chosen_.begin(), chosen);
}

void StepAssembler::FailStep(int64_t step, int attempt, const absl::Status& status) {
  Answers answers;
  std::lock_guard lock(mutex_);
  if (step != position_.step + 1 || attempt != attempt_) return;
  DropCandidates(status, &answers);
  ++attempt_;
}

void StepAssembler::DropCandidates(const absl::Status& status, Answers* answers) {
  for (auto& [trainer, versions] : candidates_) {
    for (Candidate& candidate : versions) answers->AddAll(std::move(candidate.waiting), status);
  }
  candidates_.clear();
}

std::vector<AnsweredSlice> StepAssembler::AnsweredSlices(int64_t step) const {
  std::lock_guard lock(mutex_);
  std::vector<AnsweredSlice> answers;
  const auto chosen = chosen_.find(step);
  if (chosen == chosen_.end() || !chosen->second.completed) return answers;
  for (const Chosen& slice : chosen->second.slices) {
    answers.push_back({slice.run_id, slice.trainer_rank, slice.digest, slice.reply});
  }
  return answers;
}

Position StepAssembler::position() const {
  std::lock_guard lock(mutex_);
  return position_;
}

}  // namespace ccs
