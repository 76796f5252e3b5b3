// One call of any method, from its arrival to its end.
#ifndef CCS_SERVER_RPC_CALL_H_
#define CCS_SERVER_RPC_CALL_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/metrics/metrics.h"

namespace ccs {

// Records method, code, latency and, for an error, its reason, however the call ends. Whoever will answer the
// call keeps it (by shared pointer); a call that nobody keeps any longer ends as INTERNAL. The request and
// the reply are alive until Finish. Not thread-safe.
class Call {
 public:
  // `context` is the call's, `method` a literal; `metrics` outlives the call.
  Call(grpc::CallbackServerContext* context, const char* method, Metrics* metrics);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  // Until when the client waits; infinite if it did not say.
  absl::Time deadline() const { return deadline_; }
  // Answers the client: once.
  void Finish(const absl::Status& status);

 private:
  const char* const method_;
  Metrics* const metrics_;
  const absl::Time arrival_;
  absl::Time deadline_ = absl::InfiniteFuture();
  grpc::ServerUnaryReactor* const reactor_;
  bool finished_ = false;
};

}  // namespace ccs

#endif  // CCS_SERVER_RPC_CALL_H_
