// The Training service: what a trainer calls.
#ifndef CCS_SERVER_RPC_TRAINING_SERVICE_H_
#define CCS_SERVER_RPC_TRAINING_SERVICE_H_

#include <ccs/v1/training.grpc.pb.h>

#include <memory>

#include "server/rpc/service_context.h"

namespace ccs {

// Validates, hands over to the assembler, the engine or the coordinator, and answers from their callbacks: a
// call that waits holds no thread. Methods are described in training.proto. Thread-safe.
class TrainingService final : public v1::Training::CallbackService {
 public:
  // `metrics` outlives the service.
  explicit TrainingService(Metrics* metrics) : runner_(metrics) {}

  // Calls are UNAVAILABLE before. Once. What the context points to outlives the server.
  void Open(const ServiceContext& context);

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
                                     v1::DescribeReply* reply) override;
  grpc::ServerUnaryReactor* OpenRun(grpc::CallbackServerContext* context, const v1::OpenRunRequest* request,
                                    v1::OpenRunReply* reply) override;
  grpc::ServerUnaryReactor* CloseRun(grpc::CallbackServerContext* context, const v1::CloseRunRequest* request,
                                     v1::CloseRunReply* reply) override;
  grpc::ServerUnaryReactor* Step(grpc::CallbackServerContext* context, const v1::StepRequest* request,
                                 v1::StepReply* reply) override;
  grpc::ServerUnaryReactor* Evaluate(grpc::CallbackServerContext* context, const v1::EvaluateRequest* request,
                                     v1::EvaluateReply* reply) override;
  grpc::ServerUnaryReactor* Nearest(grpc::CallbackServerContext* context, const v1::NearestRequest* request,
                                    v1::NearestReply* reply) override;
  grpc::ServerUnaryReactor* ReadCentres(grpc::CallbackServerContext* context,
                                        const v1::ReadCentresRequest* request,
                                        v1::ReadCentresReply* reply) override;
  grpc::ServerUnaryReactor* WriteCentres(grpc::CallbackServerContext* context,
                                         const v1::WriteCentresRequest* request,
                                         v1::WriteCentresReply* reply) override;

 private:
  std::unique_ptr<const ServiceContext> context_;
  std::unique_ptr<const RequestValidator> validator_;  // set before runner_ opens
  MethodRunner runner_;
};

}  // namespace ccs

#endif  // CCS_SERVER_RPC_TRAINING_SERVICE_H_
