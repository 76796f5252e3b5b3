#include "server/rpc/call.h"

#include <chrono>

#include "absl/time/clock.h"
#include "server/rpc/status.h"

namespace ccs {

Call::Call(grpc::CallbackServerContext* context, const char* method, Metrics* metrics)
    : method_(method), metrics_(metrics), arrival_(absl::Now()), reactor_(context->DefaultReactor()) {
  const std::chrono::system_clock::time_point deadline = context->deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) deadline_ = absl::FromChrono(deadline);
}

Call::~Call() {
  if (!finished_) Finish(absl::InternalError("the server dropped the call"));
}

void Call::Finish(const absl::Status& status) {
  finished_ = true;
  metrics_->RequestFinished(method_, CodeName(status.code()), absl::Now() - arrival_);
  if (!status.ok()) metrics_->RequestRejected(RejectReason(status));
  reactor_->Finish(ToGrpcStatus(status));
}

}  // namespace ccs
