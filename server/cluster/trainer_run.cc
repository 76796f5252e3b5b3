#include "server/cluster/trainer_run.h"

#include "absl/strings/str_cat.h"
#include "server/engine/error_info.h"

namespace ccs {
namespace {

constexpr int kMaxTrainers = 65536;  // the run's state goes to every shard with every start of a trainer

absl::Status CheckRequest(const v1::OpenRunRequest& request) {
  if (request.run_id().empty()) return absl::InvalidArgumentError("run_id is empty");
  if (request.num_trainers() < 1 || request.num_trainers() > kMaxTrainers) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_trainers must be in 1..", kMaxTrainers, ", is ", request.num_trainers()));
  }
  if (request.trainer_rank() < 0 || request.trainer_rank() >= request.num_trainers()) {
    return absl::InvalidArgumentError(absl::StrCat("trainer_rank must be in 0..", request.num_trainers() - 1,
                                                   ", is ", request.trainer_rank()));
  }
  if (request.start_nonce() == 0) return absl::InvalidArgumentError("start_nonce must not be 0");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunState> OpenedRun(const RunState& run, const v1::OpenRunRequest& request, bool replaceable) {
  if (absl::Status status = CheckRequest(request); !status.ok()) {
    return WithErrorInfo(status, {.reason = "bad_request"});
  }
  RunState opened = run;
  const bool fits = run.run_id == request.run_id() && run.num_trainers() == request.num_trainers();
  if (run.run_id.empty() || (replaceable && !fits)) {
    opened.run_id = request.run_id();
    opened.incarnations.assign(request.num_trainers(), 0);
  } else if (run.run_id != request.run_id()) {
    return WithErrorInfo(
        absl::FailedPreconditionError(absl::StrCat("run '", run.run_id, "' is open with ", run.num_trainers(),
                                                   " trainers; close it before opening run '",
                                                   request.run_id(), "', or take it over")),
        {.reason = "another_run_open"});
  } else if (run.num_trainers() != request.num_trainers()) {
    return WithErrorInfo(absl::FailedPreconditionError(absl::StrCat(
                             "run '", run.run_id, "' is open with ", run.num_trainers(),
                             " trainers, trainer ", request.trainer_rank(), " says ", request.num_trainers(),
                             "; close it to change the number, or take it over")),
                         {.reason = "num_trainers_differs"});
  }
  opened.incarnations[request.trainer_rank()] = request.start_nonce();
  return opened;
}

}  // namespace ccs
