#include "client/ctl/remote.h"

#include <algorithm>

namespace ccs::client {
namespace {

using Admin = Stubs<ccs::v1::Admin>;
using Training = Stubs<ccs::v1::Training>;

// How long one address may take to say how the cluster is.
constexpr absl::Duration kLongestStatus = absl::Seconds(5);

template <typename Service>
Stubs<Service> MakeStubs(const ClientOptions& options) {
  std::vector<typename Stubs<Service>::Server> servers;
  for (const std::string& address : options.addresses) servers.push_back({address, address});
  return Stubs<Service>(servers);
}

}  // namespace

Remote::Remote(const ClientOptions& options)
    : options_(options),
      admin_(MakeStubs<ccs::v1::Admin>(options)),
      training_(MakeStubs<ccs::v1::Training>(options)) {}

absl::StatusOr<Remote> Remote::Reach(const ClientOptions& options) {
  Remote remote(options);
  const ccs::v1::StatusRequest request;
  const SendOptions send{.deadline = DeadlineAfter(options.timeout),
                         .attempt_timeout = std::min(kLongestStatus, options.timeout),
                         .max_attempts = static_cast<int>(options.addresses.size())};
  const absl::Status status =
      Send({remote.admin_.ToAny(&Admin::Async::Status, &request, &remote.status_)}, send);
  if (!status.ok()) return status;
  return remote;
}

absl::StatusOr<ccs::v1::ListCheckpointsReply> Remote::ListCheckpoints() const {
  const ccs::v1::ListCheckpointsRequest request;
  ccs::v1::ListCheckpointsReply reply;
  const absl::Status status = Send({admin_.ToAny(&Admin::Async::ListCheckpoints, &request, &reply)},
                                   {.deadline = DeadlineAfter(options_.timeout)});
  if (!status.ok()) return status;
  return reply;
}

absl::StatusOr<ccs::v1::CheckpointReply> Remote::Checkpoint() const {
  const ccs::v1::CheckpointRequest request;
  ccs::v1::CheckpointReply reply;
  const absl::Status status = Send({admin_.ToAny(&Admin::Async::Checkpoint, &request, &reply)},
                                   {.deadline = DeadlineAfter(options_.timeout)});
  if (!status.ok()) return status;
  return reply;
}

absl::Status Remote::ReleaseCheckpoint(const ccs::v1::CheckpointId& id) const {
  ccs::v1::ReleaseCheckpointRequest request;
  *request.mutable_id() = id;
  ccs::v1::ReleaseCheckpointReply reply;
  return Send({admin_.ToAny(&Admin::Async::ReleaseCheckpoint, &request, &reply)},
              {.deadline = DeadlineAfter(options_.timeout)});
}

absl::Status Remote::CloseRun(const std::string& run_id) const {
  ccs::v1::CloseRunRequest request;
  request.set_run_id(run_id);
  ccs::v1::CloseRunReply reply;
  return Send({training_.ToAny(&Training::Async::CloseRun, &request, &reply)},
              {.deadline = DeadlineAfter(options_.timeout)});
}

}  // namespace ccs::client
