#include "server/cluster/local_connector.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace ccs {
namespace {

class LocalStream : public ControlStream {
 public:
  LocalStream(Coordinator* coordinator, ControlHandlers handlers)
      : coordinator_(coordinator), handlers_(std::move(handlers)), thread_([this] { Deliver(); }) {
    connection_ = coordinator_->Connect([this](const v1::CoordinatorMessage& message) {
      {
        std::lock_guard lock(mutex_);
        inbox_.push_back(message);
      }
      wake_.notify_one();
    });
  }

  ~LocalStream() override {
    coordinator_->Disconnect(connection_, absl::OkStatus());
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void Send(v1::ShardMessage message) override { coordinator_->Receive(connection_, message); }

 private:
  void Deliver() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !inbox_.empty(); });
      if (stopping_) return;
      v1::CoordinatorMessage message = std::move(inbox_.front());
      inbox_.pop_front();
      lock.unlock();
      handlers_.on_message(std::move(message));
      lock.lock();
    }
  }

  Coordinator* const coordinator_;
  const ControlHandlers handlers_;
  Coordinator::ConnectionId connection_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<v1::CoordinatorMessage> inbox_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlStream>> LocalConnector::Connect(ControlHandlers handlers,
                                                                       absl::Duration) {
  return std::make_unique<LocalStream>(coordinator_, std::move(handlers));
}

}  // namespace ccs
