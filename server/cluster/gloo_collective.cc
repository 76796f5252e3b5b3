#include "server/cluster/gloo_collective.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ccs {
namespace {

using Clock = std::chrono::steady_clock;
using gloo::transport::UnboundBuffer;

// Gloo waits on the steady clock, so what has timed out is decided on that one too. A day is for ever.
Clock::time_point SteadyDeadline(absl::Time deadline) {
  const absl::Duration left = std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(24));
  return Clock::now() + absl::ToChronoNanoseconds(left);
}

// Rounded up: Gloo must not give up before the deadline has passed.
std::chrono::milliseconds TimeLeft(Clock::time_point deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()),
                  std::chrono::milliseconds(0));
}

// The one place where Gloo's exceptions become statuses. Gloo throws the same type for a peer that went away
// and for a wait that timed out.
absl::Status ToStatus(const char* what, const std::exception& error, Clock::time_point deadline) {
  if (Clock::now() >= deadline) {
    return absl::DeadlineExceededError(absl::StrCat(what, " missed its deadline: ", error.what()));
  }
  return absl::UnavailableError(absl::StrCat(what, " failed: ", error.what()));
}

void IgnoreSigpipe() {
  struct sigaction current;
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

// The connections of one rank to all others. Close() is thread-safe.
class Mesh {
 public:
  // Starts listening, one port a peer.
  Mesh(int rank, int size, const std::string& host)
      : rank_(rank),
        size_(size),
        context_(gloo::transport::tcp::CreateDevice(host.c_str())->createContext(rank, size)) {
    // Pairs know no timeout of their own: deadlines come with each call.
    context_->setTimeout(std::chrono::milliseconds(0));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) context_->createPair(peer);
    }
  }

  // Closed softly, since what the kernel still holds is for peers that may be reading their last answer.
  ~Mesh() = default;

  // Where each rank finds this one: equally long addresses in rank order, zeros for itself.
  std::string Addresses() const {
    const int any_peer = rank_ == 0 ? 1 : 0;
    const size_t length = context_->getPair(any_peer)->address().bytes().size();
    std::string blob(length * size_, '\0');
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const std::vector<char> address = context_->getPair(peer)->address().bytes();
      std::memcpy(blob.data() + peer * length, address.data(), length);
    }
    return blob;
  }

  // Throws if a peer cannot be reached or Close() interferes. `blobs`: every rank's Addresses().
  void Connect(absl::Span<const std::string> blobs) {
    const size_t length = blobs[rank_].size() / size_;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const char* address = blobs[peer].data() + rank_ * length;
      context_->getPair(peer)->connect(std::vector<char>(address, address + length));
    }
  }

  void Close() {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) context_->getPair(peer)->close();
    }
  }

  std::unique_ptr<UnboundBuffer> Buffer(void* data, size_t bytes) {
    return context_->createUnboundBuffer(data, bytes);
  }

 private:
  const int rank_;
  const int size_;
  const std::shared_ptr<gloo::transport::Context> context_;
};

// Closes the mesh at a deadline unless destroyed before: Gloo's connect() waits by itself for ever.
class ConnectWatchdog {
 public:
  ConnectWatchdog(Mesh& mesh, Clock::time_point deadline)
      : thread_([this, &mesh, deadline](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          wake_.wait_until(lock, stop, deadline, [] { return false; });
          if (stop.stop_requested()) return;
          fired_ = true;
          mesh.Close();
        }) {}

  // Stops watching. Returns false if it had closed the mesh.
  bool Finish() {
    thread_.request_stop();
    thread_.join();
    return !fired_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  bool fired_ = false;  // read after join
  std::jthread thread_;
};

// A piece of a buffer that goes to or comes from one peer.
struct Part {
  size_t offset = 0;  // bytes
  size_t bytes = 0;
};

// One a peer; the own entry stays null.
using Buffers = std::vector<std::unique_ptr<UnboundBuffer>>;

class GlooCollective : public Collective {
 public:
  // Throws if a peer has gone again.
  GlooCollective(int rank, int size, std::unique_ptr<Mesh> mesh);
  ~GlooCollective() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status AllGather(const void* send, void* receive, absl::Span<const size_t> bytes_per_rank,
                         absl::Time deadline) override;
  absl::Status ReduceScatter(const float* send, float* receive, absl::Span<const size_t> counts,
                             absl::Time deadline) override;
  void Abort() override { Break("the collective was aborted"); }

 private:
  absl::Status CheckCounts(absl::Span<const size_t> counts) const;
  absl::Status Exchange(const void* send, void* receive, absl::Time deadline);
  bool SendAndReceive(Clock::time_point deadline);
  void WatchPeer(int peer);
  void Interrupt(int peer);
  void LosePeer(int peer, const std::string& reason);
  void Break(const std::string& reason);

  const int rank_;
  const int size_;
  const std::unique_ptr<Mesh> mesh_;

  // Of the call in progress, by peer.
  std::vector<Part> send_parts_;
  std::vector<Part> receive_parts_;
  uint64_t sequence_ = 0;       // counts calls; the ranks' are the same
  std::vector<float> staging_;  // [size, counts[rank]]: every rank's segment for this one; only grows

  // The calling thread changes the buffers under the lock and uses them without; others use them under it.
  std::mutex mutex_;
  std::string broken_;  // why no further call can succeed; empty while all is well
  Buffers out_;
  Buffers in_;

  // Gloo does not wake a call whose transfer was under way when its peer went away, only receives that have
  // not begun. A sentinel is a receive that never begins, so that its watcher learns of every loss.
  char never_sent_ = 0;
  Buffers sentinels_;
  std::vector<std::thread> watchers_;
};

GlooCollective::GlooCollective(int rank, int size, std::unique_ptr<Mesh> mesh)
    : rank_(rank),
      size_(size),
      mesh_(std::move(mesh)),
      send_parts_(size),
      receive_parts_(size),
      out_(size),
      in_(size),
      sentinels_(size) {
  constexpr uint64_t kSlot = ~uint64_t{0};
  // Before any call, so that a peer has read about them when it has finished one. A socket that is closed
  // with something left to read would drop what its peer has yet to receive.
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    sentinels_[peer] = mesh_->Buffer(&never_sent_, sizeof(never_sent_));
    sentinels_[peer]->recv(peer, kSlot);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) watchers_.emplace_back([this, peer] { WatchPeer(peer); });
  }
}

GlooCollective::~GlooCollective() {
  for (const auto& sentinel : sentinels_) {
    if (sentinel != nullptr) sentinel->abortWaitRecv();
  }
  for (std::thread& watcher : watchers_) watcher.join();
}

absl::Status GlooCollective::CheckCounts(absl::Span<const size_t> counts) const {
  if (static_cast<int>(counts.size()) == size_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(counts.size(), " counts for a group of ", size_, " ranks"));
}

absl::Status GlooCollective::AllGather(const void* send, void* receive,
                                       absl::Span<const size_t> bytes_per_rank, absl::Time deadline) {
  if (absl::Status status = CheckCounts(bytes_per_rank); !status.ok()) return status;
  const size_t own_bytes = bytes_per_rank[rank_];
  size_t offset = 0;
  for (int peer = 0; peer < size_; ++peer) {
    send_parts_[peer] = {0, own_bytes};
    receive_parts_[peer] = {offset, bytes_per_rank[peer]};
    offset += bytes_per_rank[peer];
  }
  if (own_bytes > 0) {
    std::memcpy(static_cast<char*>(receive) + receive_parts_[rank_].offset, send, own_bytes);
  }
  return Exchange(send, receive, deadline);
}

absl::Status GlooCollective::ReduceScatter(const float* send, float* receive, absl::Span<const size_t> counts,
                                           absl::Time deadline) {
  if (absl::Status status = CheckCounts(counts); !status.ok()) return status;
  const size_t own_count = counts[rank_];
  if (staging_.size() < own_count * size_) staging_ = std::vector<float>(own_count * size_);
  size_t offset = 0;
  for (int peer = 0; peer < size_; ++peer) {
    send_parts_[peer] = {offset * sizeof(float), counts[peer] * sizeof(float)};
    receive_parts_[peer] = {peer * own_count * sizeof(float), own_count * sizeof(float)};
    offset += counts[peer];
  }
  const float* own_segment = send + send_parts_[rank_].offset / sizeof(float);
  if (absl::Status status = Exchange(send, staging_.data(), deadline); !status.ok()) return status;
  for (int peer = 0; peer < size_; ++peer) {
    const float* segment = peer == rank_ ? own_segment : staging_.data() + peer * own_count;
    if (peer == 0) {
      std::copy_n(segment, own_count, receive);
    } else {
      std::transform(segment, segment + own_count, receive, receive,
                     [](float addend, float sum) { return sum + addend; });
    }
  }
  return absl::OkStatus();
}

// Moves send_parts_ of `send` to every peer, and receive_parts_ of `receive` from it.
absl::Status GlooCollective::Exchange(const void* send, void* receive, absl::Time deadline) {
  const Clock::time_point steady_deadline = SteadyDeadline(deadline);
  absl::Status status;
  bool completed = false;
  try {
    {
      std::lock_guard lock(mutex_);
      for (int peer = 0; peer < size_; ++peer) {
        const auto [send_offset, send_bytes] = send_parts_[peer];
        const auto [receive_offset, receive_bytes] = receive_parts_[peer];
        if (peer == rank_) continue;
        out_[peer] = mesh_->Buffer(static_cast<char*>(const_cast<void*>(send)) + send_offset, send_bytes);
        in_[peer] = mesh_->Buffer(static_cast<char*>(receive) + receive_offset, receive_bytes);
      }
      completed = broken_.empty();
    }
    completed = completed && SendAndReceive(steady_deadline);
  } catch (const std::exception& error) {
    completed = false;
    status = ToStatus("an exchange between shards", error, steady_deadline);
  }
  if (!completed) Break(std::string(status.message()));
  std::lock_guard lock(mutex_);
  for (Buffers* buffers : {&out_, &in_}) {
    for (auto& buffer : *buffers) buffer.reset();
  }
  if (completed || absl::IsDeadlineExceeded(status)) return status;
  return absl::UnavailableError(broken_);
}

// False if it was interrupted. A peer may leave right after its own call has ended: what it has sent by then
// counts, hence the second look.
bool GlooCollective::SendAndReceive(Clock::time_point deadline) {
  // Gloo ends the process if more arrives than is expected. With the size in the name of a message, ranks
  // that disagree wait for each other until the deadline instead.
  ++sequence_;
  const auto slot = [this](const auto& buffer) { return sequence_ << 40 ^ buffer->size; };
  for (int i = 1; i < size_; ++i) {
    const int source = (rank_ + i) % size_;
    if (in_[source]->size > 0) in_[source]->recv(source, slot(in_[source]));
  }
  for (int i = 1; i < size_; ++i) {
    const int destination = (rank_ + size_ - i) % size_;
    if (out_[destination]->size > 0) out_[destination]->send(destination, slot(out_[destination]));
  }
  constexpr std::chrono::milliseconds kNow(0);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    UnboundBuffer& out = *out_[peer];
    UnboundBuffer& in = *in_[peer];
    if (out.size > 0 && !out.waitSend(TimeLeft(deadline)) && !out.waitSend(kNow)) return false;
    if (in.size > 0 && !in.waitRecv(TimeLeft(deadline)) && !in.waitRecv(kNow)) return false;
  }
  return true;
}

void GlooCollective::WatchPeer(int peer) {
  try {
    sentinels_[peer]->waitRecv(std::chrono::hours(24 * 365));
  } catch (const std::exception& error) {
    LosePeer(peer, absl::StrCat("lost the connection to shard ", peer, ": ", error.what()));
  }
}

void GlooCollective::Interrupt(int peer) {
  if (out_[peer] != nullptr) out_[peer]->abortWaitSend();
  if (in_[peer] != nullptr) in_[peer]->abortWaitRecv();
}

// The call in progress may still succeed, if the peer had done its part.
void GlooCollective::LosePeer(int peer, const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (broken_.empty()) broken_ = reason;
  Interrupt(peer);
}

// Closes all connections, so that peers that wait for this rank alone learn of it as well.
void GlooCollective::Break(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (broken_.empty()) broken_ = reason;
  }
  mesh_->Close();
  std::lock_guard lock(mutex_);
  for (int peer = 0; peer < size_; ++peer) Interrupt(peer);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> MakeGlooCollective(const CollectiveOptions& options,
                                                               const Rendezvous& rendezvous) {
  IgnoreSigpipe();
  const Clock::time_point deadline = SteadyDeadline(options.deadline);
  try {
    auto mesh = std::make_unique<Mesh>(options.rank, options.size, options.host);
    const std::string own_blob = mesh->Addresses();
    absl::StatusOr<std::vector<std::string>> blobs = rendezvous(own_blob, options.deadline);
    if (!blobs.ok()) return blobs.status();
    const auto fits = [&](const std::string& blob) { return blob.size() == own_blob.size(); };
    if (static_cast<int>(blobs->size()) != options.size || !std::all_of(blobs->begin(), blobs->end(), fits)) {
      return absl::InternalError("the rendezvous returned addresses of another group or version");
    }
    ConnectWatchdog watchdog(*mesh, deadline);
    mesh->Connect(*blobs);
    if (!watchdog.Finish()) return absl::DeadlineExceededError("shards did not connect in time");
    return std::make_unique<GlooCollective>(options.rank, options.size, std::move(mesh));
  } catch (const std::exception& error) {
    return ToStatus("connecting the shards", error, deadline);
  }
}

}  // namespace ccs
