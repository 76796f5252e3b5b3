#include "tests/testing/tcp_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ccs::testing {
namespace {

// HTTP/2's own frames (settings, window updates, pings) are smaller, replies with a gradient larger.
constexpr size_t kReplyBytes = 200;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int Dial(int port) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  // On the loopback interface this is over at once, either way.
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return connection;
  close(connection);
  return -1;
}

void MakeReady(int connection) {
  fcntl(connection, F_SETFL, O_NONBLOCK);
  const int on = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void Reset(int connection) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(connection, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(connection);
}

bool MayComeLater(ssize_t result) { return result < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

TcpProxy::TcpProxy(int target_port, int port) : target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(port);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Loop(); });
}

TcpProxy::~TcpProxy() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  for (Connection& connection : connections_) Close(connection);
  for (const int descriptor : {listener_, wake_[0], wake_[1]}) close(descriptor);
}

std::string TcpProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void TcpProxy::SetDelay(absl::Duration delay) {
  std::lock_guard lock(mutex_);
  delay_ = delay;
}

void TcpProxy::Hang(bool hangs) {
  {
    std::lock_guard lock(mutex_);
    hangs_ = hangs;
  }
  Wake();
}

void TcpProxy::CutAll() {
  {
    std::lock_guard lock(mutex_);
    CutEverything();
  }
  Wake();
}

void TcpProxy::CutAfter(int64_t request_bytes) {
  std::lock_guard lock(mutex_);
  cut_after_ = request_bytes;
}

void TcpProxy::CutNextReply() {
  std::lock_guard lock(mutex_);
  cut_reply_ = true;
}

int TcpProxy::cuts() const {
  std::lock_guard lock(mutex_);
  return cuts_;
}

void TcpProxy::Wake() const { (void)!write(wake_[1], "", 1); }

void TcpProxy::Loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    int timeout_ms = -1;
    std::vector<pollfd> polled = Polled(&timeout_ms);
    lock.unlock();
    poll(polled.data(), polled.size(), timeout_ms);
    lock.lock();
    std::array<char, 64> ignored;
    while (read(wake_[0], ignored.data(), ignored.size()) > 0) {
    }
    if ((polled[1].revents & POLLIN) != 0) Accept();
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      if (!hangs_) Serve(*connection);
      if (!connection->broken) {
        ++connection;
        continue;
      }
      Close(*connection);
      connection = connections_.erase(connection);
    }
  }
}

void TcpProxy::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = Dial(target_port_);
  if (server < 0) return Reset(client);
  MakeReady(client);
  MakeReady(server);
  connections_.push_back(
      {{.from = client, .to = server, .pieces = {}}, {.from = server, .to = client, .pieces = {}}});
}

std::vector<pollfd> TcpProxy::Polled(int* timeout_ms) {
  std::vector<pollfd> polled = {{wake_[0], POLLIN, 0}, {listener_, POLLIN, 0}};
  if (hangs_) return polled;
  const absl::Time now = absl::Now();
  for (const Connection& connection : connections_) {
    for (const Way* way : {&connection.requests, &connection.replies}) {
      if (!way->ended) polled.push_back({way->from, POLLIN, 0});
      if (way->pieces.empty()) continue;
      const absl::Duration rest = way->pieces.front().due - now;
      if (rest <= absl::ZeroDuration()) {
        polled.push_back({way->to, POLLOUT, 0});
      } else {
        const int rest_ms = 1 + static_cast<int>(absl::ToInt64Milliseconds(rest));
        *timeout_ms = *timeout_ms < 0 ? rest_ms : std::min(*timeout_ms, rest_ms);
      }
    }
  }
  return polled;
}

void TcpProxy::Serve(Connection& connection) {
  for (Way* way : {&connection.requests, &connection.replies}) {
    if (!connection.broken && !way->ended) Read(connection, *way);
    if (!connection.broken) Write(connection, *way);
  }
}

void TcpProxy::Read(Connection& connection, Way& way) {
  std::array<char, 65536> buffer;
  const ssize_t count = recv(way.from, buffer.data(), buffer.size(), 0);
  if (MayComeLater(count)) return;
  if (count < 0) {
    connection.broken = true;
    return;
  }
  way.ended = count == 0;
  if (way.ended) return;
  std::string bytes(buffer.data(), count);
  if (&way == &connection.replies && cut_reply_ && bytes.size() >= kReplyBytes) {
    cut_reply_ = false;
    ++cuts_;
    connection.broken = true;
    return;
  }
  if (&way == &connection.requests && cut_after_ >= 0) {
    cut_after_ -= count;
    if (cut_after_ < 0) {
      // The beginning still arrives.
      (void)!send(way.to, bytes.data(), static_cast<size_t>(count + cut_after_ + 1), MSG_NOSIGNAL);
      cut_after_ = -1;
      return CutEverything();
    }
  }
  way.pieces.push_back({absl::Now() + delay_, std::move(bytes)});
}

void TcpProxy::Write(Connection& connection, Way& way) {
  while (!way.pieces.empty() && way.pieces.front().due <= absl::Now()) {
    std::string& bytes = way.pieces.front().bytes;
    const ssize_t sent = send(way.to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (MayComeLater(sent)) return;
    if (sent < 0) {
      connection.broken = true;
      return;
    }
    bytes.erase(0, sent);
    if (bytes.empty()) way.pieces.pop_front();
  }
  if (way.ended && way.pieces.empty()) connection.broken = true;  // a half of it is of no use to gRPC
}

void TcpProxy::CutEverything() {
  for (Connection& connection : connections_) {
    if (!connection.broken) ++cuts_;
    connection.broken = true;
  }
}

void TcpProxy::Close(Connection& connection) {
  Reset(connection.requests.from);
  Reset(connection.requests.to);
}

}  // namespace ccs::testing
