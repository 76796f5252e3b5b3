#include "server/cluster/cluster_service.h"

#include <string>

#include "absl/status/status.h"
#include "server/cluster/write_queue.h"

namespace ccs {
namespace {

grpc::Status Stopping() { return {grpc::StatusCode::UNAVAILABLE, "the coordinator is stopping"}; }

// Ends a call before it has begun.
class RefusedStream : public grpc::ServerBidiReactor<v1::ShardMessage, v1::CoordinatorMessage> {
 public:
  RefusedStream() { Finish(Stopping()); }
  void OnDone() override { delete this; }
};

}  // namespace

class ClusterService::Stream : public grpc::ServerBidiReactor<v1::ShardMessage, v1::CoordinatorMessage> {
 public:
  Stream(ClusterService* service, std::string peer) : service_(service), peer_(std::move(peer)) {
    connection_ = service_->coordinator_->Connect(
        [this](const v1::CoordinatorMessage& message) { Act(queue_.Push(message)); });
    StartRead(&incoming_);
  }

  void Close() { Act(queue_.Close()); }

  void OnReadDone(bool ok) override {
    if (!ok) return Close();
    service_->coordinator_->Receive(connection_, incoming_);
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override { Act(queue_.Written(ok)); }
  void OnCancel() override { Close(); }
  void OnDone() override {
    service_->coordinator_->Disconnect(connection_,
                                       absl::UnavailableError("the stream from " + peer_ + " has ended"));
    ClusterService* const service = service_;
    std::lock_guard lock(service->mutex_);
    service->streams_.erase(this);
    delete this;
    service->empty_.notify_all();
  }

 private:
  using Queue = WriteQueue<v1::CoordinatorMessage>;

  void Act(Queue::Next next) {
    if (next == Queue::Next::kWrite) StartWrite(queue_.front());
    if (next == Queue::Next::kFinish) Finish(Stopping());
  }

  ClusterService* const service_;
  const std::string peer_;
  Coordinator::ConnectionId connection_ = 0;
  v1::ShardMessage incoming_;
  Queue queue_;
};

ClusterService::~ClusterService() {
  Close();
  std::unique_lock lock(mutex_);
  empty_.wait(lock, [this] { return streams_.empty(); });
}

void ClusterService::Close() {
  std::lock_guard lock(mutex_);
  closing_ = true;
  for (Stream* stream : streams_) stream->Close();
}

grpc::ServerBidiReactor<v1::ShardMessage, v1::CoordinatorMessage>* ClusterService::Join(
    grpc::CallbackServerContext* context) {
  std::lock_guard lock(mutex_);
  if (closing_) return new RefusedStream;
  auto* stream = new Stream(this, context->peer());
  streams_.insert(stream);
  return stream;
}

}  // namespace ccs
