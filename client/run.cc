#include "client/run.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/layout.h"
#include "client/random_id.h"
#include "client/status.h"
#include "client/tensor.h"

namespace ccs::client {
namespace {

using StepFuture = std::future<absl::StatusOr<StepResult>>;

absl::Status CheckInput(const StepInput& input, int dim) {
  return CheckShape(input.features, static_cast<int64_t>(input.labels.size()), dim,
                    absl::StrCat("features (with ", input.labels.size(), " labels)"));
}

ccs::v1::StepParams ToParams(const StepInput& input) {
  ccs::v1::StepParams params;
  params.set_learning_rate(input.learning_rate);
  if (input.scale.has_value()) params.set_scale(*input.scale);
  if (input.margin.has_value()) {
    params.mutable_margin()->set_m1(input.margin->m1);
    params.mutable_margin()->set_m2(input.margin->m2);
    params.mutable_margin()->set_m3(input.margin->m3);
  }
  params.set_checkpoint(input.checkpoint);
  return params;
}

// The parts' replies put together in order.
absl::StatusOr<StepResult> Gather(const std::vector<Part>& parts,
                                  const std::vector<ccs::v1::StepReply>& replies, int64_t rows, int dim) {
  StepResult result{
      .step = replies[0].step(), .loss = replies[0].loss(), .feature_grad = {}, .sampled_classes = 0};
  result.feature_grad.resize(rows * dim);
  for (size_t i = 0; i < parts.size(); ++i) {
    const ccs::v1::Tensor& grad = replies[i].feature_grad();
    if (absl::Status status = CheckTensor(grad, parts[i].rows, dim, "gradient"); !status.ok()) return status;
    if (!grad.data().empty()) {
      std::memcpy(result.feature_grad.data() + parts[i].first_row * dim, grad.data().data(),
                  grad.data().size());
    }
    result.sampled_classes += replies[i].statistics().sampled_classes();
  }
  return result;
}

// Says what to do once the run's history is abandoned.
absl::Status Explain(const absl::Status& status) {
  if (!absl::IsAborted(status)) return status;
  const std::optional<Position> position = PositionFromStatus(status);
  if (!position.has_value()) return Append(status, "; open the run again");
  return Append(status, absl::StrCat("; the cluster stands at step ", position->step, " of lineage ",
                                     position->lineage, ": open the run again and go on from there"));
}

class RunImpl final : public Run {
 public:
  RunImpl(std::shared_ptr<const Cluster> cluster, const RunOptions& options, uint64_t incarnation,
          const Position& position)
      : cluster_(std::move(cluster)),
        options_(options),
        incarnation_(incarnation),
        position_(position),
        worker_([this] { Work(); }) {}

  ~RunImpl() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    worker_.join();
  }

  Position position() const override {
    const std::lock_guard lock(mutex_);
    return position_;
  }

  absl::StatusOr<StepResult> Step(const StepInput& input) override { return StepAsync(input).get(); }

  StepFuture StepAsync(const StepInput& input) override {
    const std::lock_guard lock(mutex_);
    const int64_t step = position_.step + 1 + static_cast<int64_t>(steps_.size());
    steps_.push_back({input, step, ++calls_, cluster_->Deadline(), {}});
    changed_.notify_one();
    return steps_.back().promise.get_future();
  }

  absl::Status Close() override {
    ccs::v1::CloseRunRequest request;
    request.set_run_id(options_.run_id);
    ccs::v1::CloseRunReply reply;
    return Send({cluster_->shards.ToAny(&Stubs<Training>::Async::CloseRun, &request, &reply)},
                cluster_->Deadline());
  }

 private:
  struct Pending {
    StepInput input;
    int64_t step;
    int64_t call;
    SendOptions send;
    std::promise<absl::StatusOr<StepResult>> promise;
  };

  // Takes the queued steps one at a time, those left at the end included: each has its own deadline.
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closing_ || !steps_.empty(); });
      if (steps_.empty()) return;
      const Pending& next = steps_.front();  // stays where it is while others are added
      const Position before = position_;
      lock.unlock();
      absl::StatusOr<StepResult> result = TakeStep(next, before);
      lock.lock();
      if (result.ok()) position_.step = next.step;
      std::promise<absl::StatusOr<StepResult>> promise = std::move(steps_.front().promise);
      steps_.pop_front();
      lock.unlock();
      promise.set_value(std::move(result));
      lock.lock();
    }
  }

  absl::StatusOr<StepResult> TakeStep(const Pending& pending, const Position& before) const {
    const StepInput& input = pending.input;
    if (pending.step != before.step + 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("step ", pending.step, " was queued behind step ", before.step + 1, ", which failed"));
    }
    const int dim = cluster_->info.dim;
    if (absl::Status status = CheckInput(input, dim); !status.ok()) return status;
    const auto rows = static_cast<int64_t>(input.labels.size());
    const std::vector<Part> parts = SplitRows(options_.trainer_rank, options_.num_trainers,
                                              static_cast<int>(cluster_->info.shards.size()), rows);
    std::vector<ccs::v1::StepRequest> requests(parts.size());
    std::vector<ccs::v1::StepReply> replies(parts.size());
    std::vector<Call> calls;
    for (size_t i = 0; i < parts.size(); ++i) {
      FillRequest(pending, before, parts[i], &requests[i]);
      calls.push_back(
          cluster_->shards.ToOne(parts[i].shard, &Stubs<Training>::Async::Step, &requests[i], &replies[i]));
    }
    if (absl::Status status = Send(calls, pending.send); !status.ok()) return Explain(status);
    return Gather(parts, replies, rows, dim);
  }

  void FillRequest(const Pending& pending, const Position& before, const Part& part,
                   ccs::v1::StepRequest* request) const {
    const StepInput& input = pending.input;
    const int64_t dim = cluster_->info.dim;
    request->set_run_id(options_.run_id);
    request->set_incarnation(incarnation_);
    request->set_lineage(before.lineage);
    request->set_trainer_rank(options_.trainer_rank);
    request->set_step(before.step + 1);
    request->set_call(pending.call);
    *request->mutable_params() = ToParams(input);
    request->set_gradient_scale(
        options_.scale_gradient_by_trainers ? static_cast<float>(options_.num_trainers) : 1.0f);
    FillTensor(input.features.subspan(part.first_row * dim, part.rows * dim), dim,
               request->mutable_features());
    const absl::Span<const int64_t> labels = input.labels.subspan(part.first_row, part.rows);
    request->mutable_labels()->Add(labels.begin(), labels.end());
  }

  const std::shared_ptr<const Cluster> cluster_;
  const RunOptions options_;
  const uint64_t incarnation_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Position position_;
  int64_t calls_ = 0;          // of Step
  std::deque<Pending> steps_;  // the first one is under way
  bool closing_ = false;
  std::thread worker_;  // last: it uses the others
};

// Where a trainer goes on whose last result is of the step `last`, and whose cluster is at `position`.
absl::StatusOr<Position> Continue(const Position& position, std::optional<int64_t> last) {
  if (!last.has_value() || *last == position.step) return position;
  if (*last + 1 == position.step) return Position{position.lineage, *last};
  return absl::FailedPreconditionError(absl::StrCat(
      "the trainer's last result is of step ", *last, ", the cluster is at step ", position.step,
      " of lineage ", position.lineage, ": go on from there, or have it resume an earlier step"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Run>> OpenRun(const Cluster& cluster, const RunOptions& options) {
  if (options.run_id.empty()) return absl::InvalidArgumentError("run_id is empty");
  if (options.trainer_rank < 0 || options.trainer_rank >= options.num_trainers) {
    return absl::InvalidArgumentError(absl::StrCat("trainer_rank ", options.trainer_rank,
                                                   " is not one of the ranks of ", options.num_trainers,
                                                   " trainers"));
  }
  ccs::v1::OpenRunRequest request;
  request.set_run_id(options.run_id);
  request.set_trainer_rank(options.trainer_rank);
  request.set_num_trainers(options.num_trainers);
  request.set_start_nonce(RandomId());
  if (options.resume_step.has_value()) request.set_resume_step(*options.resume_step);
  request.set_takeover(options.takeover);
  ccs::v1::OpenRunReply reply;
  if (absl::Status status = Send({cluster.shards.ToAny(&Stubs<Training>::Async::OpenRun, &request, &reply)},
                                 cluster.Deadline());
      !status.ok()) {
    return status;
  }
  // The shards may have moved since the client connected.
  auto current = MakeCluster(reply.spec(), reply.layout(), reply.position(), cluster.info.version,
                             cluster.timeout, cluster.addresses);
  if (!current.ok()) return current.status();
  const absl::StatusOr<Position> position = Continue((*current)->info.position, options.last_result);
  if (!position.ok()) return position.status();
  return std::make_unique<RunImpl>(*std::move(current), options, reply.incarnation(), *position);
}

}  // namespace ccs::client
