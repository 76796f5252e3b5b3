#include "server/cluster/grpc_connector.h"

#include <ccs/v1/cluster.grpc.pb.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cluster/write_queue.h"

namespace ccs {
namespace {

// A peer that vanished without a word is noticed by the transport too, not only by missing heartbeats.
constexpr int kKeepaliveTimeMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // Each try starts afresh: the caller has its own pauses between them.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class GrpcStream : public ControlStream,
                   private grpc::ClientBidiReactor<v1::ShardMessage, v1::CoordinatorMessage> {
 public:
  GrpcStream(std::shared_ptr<grpc::Channel> channel, ControlHandlers handlers)
      : handlers_(std::move(handlers)), stub_(v1::Cluster::NewStub(std::move(channel))) {
    stub_->async()->Join(&context_, this);
    AddHold();  // for Send, which writes from outside the reactions
    StartRead(&incoming_);
    StartCall();
  }

  ~GrpcStream() override {
    context_.TryCancel();
    End();
    std::unique_lock lock(mutex_);
    done_changed_.wait(lock, [this] { return done_; });
  }

  void Send(v1::ShardMessage message) override { Act(queue_.Push(std::move(message))); }

 private:
  using Queue = WriteQueue<v1::ShardMessage>;

  void OnReadDone(bool ok) override {
    if (!ok) return End();
    handlers_.on_message(std::move(incoming_));
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override { Act(queue_.Written(ok)); }
  void OnDone(const grpc::Status& status) override {
    handlers_.on_closed(
        absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
    std::lock_guard lock(mutex_);
    done_ = true;
    done_changed_.notify_all();
  }

  void End() { Act(queue_.Close()); }
  void Act(Queue::Next next) {
    if (next == Queue::Next::kWrite) StartWrite(queue_.front());
    if (next == Queue::Next::kFinish) RemoveHold();
  }

  const ControlHandlers handlers_;
  grpc::ClientContext context_;
  const std::unique_ptr<v1::Cluster::Stub> stub_;
  v1::CoordinatorMessage incoming_;
  Queue queue_;
  std::mutex mutex_;
  std::condition_variable done_changed_;
  bool done_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlStream>> GrpcConnector::Connect(ControlHandlers handlers,
                                                                      absl::Duration timeout) {
  std::shared_ptr<grpc::Channel> channel = MakeChannel(address_);
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + timeout))) {
    return absl::UnavailableError(
        absl::StrCat("no connection to ", address_, " within ", absl::FormatDuration(timeout)));
  }
  return std::make_unique<GrpcStream>(std::move(channel), std::move(handlers));
}

}  // namespace ccs
