#include "tests/server/simulation/trainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_info.h"
#include "server/engine/layout.h"

namespace ccs::simulation {
namespace {

constexpr char kRun[] = "run";
constexpr absl::Duration kPatience = absl::Seconds(5);  // with an answer that does not come
constexpr absl::Duration kWait = absl::Seconds(20);     // of a slice for its step

}  // namespace

Trainer::Trainer(World* world, Cluster* cluster, Model* model, int rank, int num_trainers, int64_t last_step,
                 std::shared_ptr<Backbone> file)
    : world_(world),
      cluster_(cluster),
      model_(model),
      rank_(rank),
      num_trainers_(num_trainers),
      last_step_(last_step),
      file_(std::move(file)),
      backbone_(*file_) {}

void Trainer::After(absl::Duration delay, std::function<void()> what) {
  world_->After(delay, [self = weak_from_this(), what = std::move(what)] {
    if (const auto alive = self.lock()) what();
  });
}

// ---------------------------------------------------------------- the run

void Trainer::Open() {
  call_.reset();
  if (replaced_) return;
  const uint64_t nonce = opening_ = world_->Bits() | 1;
  After(kPatience, [this, nonce] {
    if (opening_ == nonce) Open();
  });
  const auto shard = cluster_->shard(world_->Below(cluster_->num_shards()));
  if (shard == nullptr) return;
  v1::Propose proposal;
  proposal.mutable_open_run()->set_run_id(kRun);
  proposal.mutable_open_run()->set_trainer_rank(rank_);
  proposal.mutable_open_run()->set_num_trainers(num_trainers_);
  proposal.mutable_open_run()->set_start_nonce(nonce);
  if (resume_step_) proposal.mutable_open_run()->set_resume_step(*resume_step_);
  shard->Propose(proposal, [self = weak_from_this(), this, nonce](const absl::StatusOr<v1::Result>& result) {
    const auto alive = self.lock();
    if (!alive) return;
    if (absl::IsNotFound(result.status()) && wanted_back_) {
      resume_step_.reset();  // out of reach
    } else if (!result.ok() && !absl::IsUnavailable(result.status())) {
      model_->Violated(std::string(result.status().message()));
    }
    if (!result.ok()) return;  // tried again when patience is at its end
    const v1::Position& position = result->open_run().position();
    After(world_->Delay(),
          [this, nonce, at = Position{position.lineage(), position.step()}] { Opened(nonce, at); });
  });
}

void Trainer::Opened(uint64_t nonce, const Position& position) {
  if (opening_ != nonce) return;
  opening_ = 0;
  incarnation_ = nonce;
  if (const std::optional<int64_t> wanted = std::exchange(resume_step_, std::nullopt)) {
    if (position.step != *wanted) model_->Violated("the run was to go on from another step");
    *file_ = {*wanted, file_->earlier[*wanted], file_->earlier};
    backbone_ = *file_;
  }
  if (file_->step > backbone_.step) backbone_ = *file_;  // of its former self
  if (position.step > backbone_.step + 1) {
    model_->Violated(absl::StrCat("trainer ", rank_, " has step ", backbone_.step,
                                  ", the cluster is at step ", position.step, " without it"));
  }
  if (position.step < backbone_.step) {
    if (position.lineage == lineage_) model_->Violated("a step is gone, and the lineage goes on");
    *file_ = {position.step, file_->earlier[position.step], file_->earlier};
    backbone_ = *file_;
  }
  lineage_ = position.lineage;
  BeginStep();
}

// ---------------------------------------------------------------- steps

void Trainer::BeginStep() {
  if (finished()) {
    // What was lost since is trained once more.
    return After(kPatience, [this] {
      if (!call_ && opening_ == 0) Open();
    });
  }
  if (!world_->Chance(0.1)) return NewCall(Payload());
  // A call that is given up: the trainer corrects its input.
  NewCall(Payload() + 1);
  After(world_->Delay(), [this, call = calls_] {
    if (call_ && call_->number == call) NewCall(Payload());
  });
}

void Trainer::NewCall(uint64_t payload) {
  call_ = Call{++calls_, payload, {}};
  for (int rank = 0; rank < cluster_->num_shards(); ++rank) {
    if (IsHome(rank, cluster_->num_shards(), rank_, num_trainers_)) call_->losses[rank] = std::nullopt;
  }
  for (const auto& [rank, unused] : std::map(call_->losses)) SendPart(calls_, rank);
}

void Trainer::SendPart(int64_t call, int rank) {
  if (!call_ || call_->number != call || call_->losses[rank]) return;
  Slice slice;
  slice.run_id = kRun;
  slice.incarnation = incarnation_;
  slice.lineage = lineage_;
  slice.trainer_rank = rank_;
  slice.step = backbone_.step + 1;
  slice.call = call;
  slice.params.learning_rate = 0.1f;
  slice.params.checkpoint = slice.step % 7 == 0;
  slice.labels = {static_cast<int64_t>(call_->payload)};
  slice.features = {1.0f};
  slice.digest = Mix(call_->payload, rank);
  slice.deadline = world_->now() + kWait;
  const auto attempt = std::make_shared<bool>(false);  // answered
  const Done done = [self = weak_from_this(), this, call, rank, attempt](const auto& reply) {
    if (const auto alive = self.lock(); alive && !world_->Chance(0.02)) {
      After(world_->Delay(), [this, call, rank, attempt, reply] {
        if (!std::exchange(*attempt, true)) Answered(call, rank, reply);
      });
    }
  };
  const int copies = world_->Chance(0.02) ? 0 : world_->Chance(0.03) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) Deliver(rank, slice, done);
  After(kPatience, [this, call, rank, attempt] {
    if (!std::exchange(*attempt, true)) SendPart(call, rank);
  });
}

// What is in the network arrives, whatever becomes of the trainer.
void Trainer::Deliver(int rank, const Slice& slice, const Done& done) {
  world_->After(world_->Delay(), [cluster = cluster_, rank, slice, done] {
    if (const auto shard = cluster->shard(rank)) {
      shard->Submit(slice, done);
    } else {
      done(absl::UnavailableError("connection refused"));
    }
  });
}

void Trainer::Answered(int64_t call, int rank,
                       const absl::StatusOr<std::shared_ptr<const SliceReply>>& reply) {
  if (!call_ || call_->number != call) return;
  if (!reply.ok()) return Failed(call, rank, reply.status());
  if ((*reply)->step != backbone_.step + 1) model_->Violated("the reply is of another step");
  call_->losses[rank] = (*reply)->loss;
  model_->Replied(lineage_, (*reply)->step, Mix(call_->payload, rank), (*reply)->loss);
  if (std::all_of(call_->losses.begin(), call_->losses.end(),
                  [](const auto& loss) { return loss.second.has_value(); })) {
    FinishStep();
  }
}

void Trainer::Failed(int64_t call, int rank, const absl::Status& status) {
  const std::optional<ErrorInfo> info = GetErrorInfo(status);
  const std::string reason = info ? info->reason : "";
  if (absl::IsUnavailable(status)) {
    return After(absl::Milliseconds(100 + world_->Below(400)), [this, call, rank] { SendPart(call, rank); });
  }
  if (absl::IsDeadlineExceeded(status)) {  // nothing has changed, says the cluster
    return After(world_->Delay(), [this, call] {
      if (call_ && call_->number == call) NewCall(call_->payload);
    });
  }
  if (absl::IsAborted(status) || reason == "run_not_open") return Open();
  // The other one was taken, sent by this process or by its former self.
  if (reason == "payload_differs") return NewCall(call_->payload == Payload() ? Payload() + 1 : Payload());
  if (reason == "stale_incarnation") {
    if (replaced_) {
      call_.reset();
      return;
    }
    // An opening of its own that was given up has come through after all.
    return Open();
  }
  model_->Violated(absl::StrCat("trainer ", rank_, ", step ", backbone_.step + 1, ": ", status.ToString()));
}

void Trainer::FinishStep() {
  uint64_t weights = backbone_.weights;
  for (const auto& [rank, loss] : call_->losses) weights = Mix(weights, static_cast<uint64_t>(*loss));
  call_.reset();
  backbone_.earlier[backbone_.step + 1] = weights;
  backbone_ = {backbone_.step + 1, weights, backbone_.earlier};
  if (file_->step < backbone_.step) *file_ = backbone_;
  model_->Acknowledged(lineage_, backbone_.step);
  After(world_->Delay(), [this] { BeginStep(); });
}

}  // namespace ccs::simulation
