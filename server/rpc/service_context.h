// What the services need of the shard they speak for.
#ifndef CCS_SERVER_RPC_SERVICE_CONTEXT_H_
#define CCS_SERVER_RPC_SERVICE_CONTEXT_H_

#include <ccs/v1/model.pb.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "kernels/shard_backend.h"
#include "server/cluster/member.h"
#include "server/engine/engine.h"
#include "server/engine/staged_writes.h"
#include "server/engine/step_assembler.h"
#include "server/rpc/call.h"
#include "server/rpc/validation.h"

namespace ccs {

// All pointers outlive the services' server.
struct ServiceContext {
  RequestRules rules;
  v1::ModelSpec spec;
  std::string version;
  std::string address;  // as advertised
  std::string device;
  kernels::MemoryNeed memory;
  Member* member = nullptr;
  Engine* engine = nullptr;
  StepAssembler* assembler = nullptr;
  StagedWrites* staged_writes = nullptr;
};

// Runs methods once there is a shard to run them on. The server listens before that: the shard's own address,
// which the group must know, is known only then. Thread-safe.
class MethodRunner {
 public:
  // `metrics` outlives the runner.
  explicit MethodRunner(Metrics* metrics) : metrics_(metrics) {}

  // From now on methods run; before, they are UNAVAILABLE. Once. `context` outlives the runner.
  void Open(const ServiceContext* context) { context_.store(context, std::memory_order_release); }

  // Calls body(call, context), which returns an error, or OK if it has finished the call or has handed it to
  // somebody who will.
  template <typename Body>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* grpc_context, const char* method, Body body) {
    const auto call = std::make_shared<Call>(grpc_context, method, metrics_);
    grpc::ServerUnaryReactor* const reactor = call->reactor();
    const ServiceContext* context = context_.load(std::memory_order_acquire);
    const absl::Status status = context != nullptr
                                    ? body(call, *context)
                                    : absl::UnavailableError("the shard is starting; try again");
    if (!status.ok()) call->Finish(status);
    return reactor;
  }

 private:
  Metrics* const metrics_;
  std::atomic<const ServiceContext*> context_{nullptr};
};

}  // namespace ccs

#endif  // CCS_SERVER_RPC_SERVICE_CONTEXT_H_
