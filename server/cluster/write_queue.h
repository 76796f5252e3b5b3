// Messages that wait for their turn on a gRPC stream, which takes one write at a time.
#ifndef CCS_SERVER_CLUSTER_WRITE_QUEUE_H_
#define CCS_SERVER_CLUSTER_WRITE_QUEUE_H_

#include <deque>
#include <mutex>
#include <utility>

namespace ccs {

// Decides what the stream has to do next; the caller does it without the lock held, because a write that is
// done at once may call back. Thread-safe.
template <typename Message>
class WriteQueue {
 public:
  enum class Next { kNothing, kWrite, kFinish };

  // After kWrite, write front().
  Next Push(Message message) {
    std::lock_guard lock(mutex_);
    if (closed_) return Next::kNothing;
    messages_.push_back(std::move(message));
    return messages_.size() == 1 ? Next::kWrite : Next::kNothing;
  }
  // The write of front() is over.
  Next Written(bool ok) {
    std::lock_guard lock(mutex_);
    messages_.pop_front();
    if (!ok) {
      messages_.clear();
      closed_ = true;
    }
    if (!messages_.empty()) return Next::kWrite;
    return closed_ && !std::exchange(finished_, true) ? Next::kFinish : Next::kNothing;
  }
  // Takes no more messages; finishes once those there are written.
  Next Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    return messages_.empty() && !std::exchange(finished_, true) ? Next::kFinish : Next::kNothing;
  }
  // The message being written; stays where it is until Written.
  const Message* front() const {
    std::lock_guard lock(mutex_);
    return &messages_.front();
  }

 private:
  mutable std::mutex mutex_;
  std::deque<Message> messages_;
  bool closed_ = false;
  bool finished_ = false;
};

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_WRITE_QUEUE_H_
