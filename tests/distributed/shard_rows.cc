#include "tests/distributed/shard_rows.h"

#include <ccs/v1/training.grpc.pb.h>
#include <grpcpp/grpcpp.h>

#include <cstring>

namespace ccs::testing {
namespace {

std::vector<float> Floats(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.data().data(), tensor.data().size());
  return values;
}

}  // namespace

absl::StatusOr<ShardRows> ReadShardRows(const std::string& address, int64_t class_start, int64_t count,
                                        absl::Duration timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto stub = v1::Training::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  v1::ReadCentresRequest request;
  for (int64_t i = 0; i < count; ++i) request.add_class_ids(class_start + i);
  request.set_with_momentum(true);
  v1::ReadCentresReply reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  const grpc::Status status = stub->ReadCentres(&context, request, &reply);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  return ShardRows{reply.position().lineage(), reply.position().step(), Floats(reply.centres()),
                   Floats(reply.momentum())};
}

}  // namespace ccs::testing
