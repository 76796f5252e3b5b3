// A network with faults, between clients and one server of the loopback interface.
#ifndef CCS_TESTS_TESTING_TCP_PROXY_H_
#define CCS_TESTS_TESTING_TCP_PROXY_H_

#include <poll.h>

#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace ccs::testing {

// Passes TCP connections on to a port. Faults come over all connections and may come at any time; none, and
// the proxy is as good as a wire. One thread of its own; thread-safe.
class TcpProxy {
 public:
  // Port 0: any that is free.
  explicit TcpProxy(int target_port, int port = 0);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string address() const;
  int port() const { return port_; }

  // From now on bytes arrive this much later.
  void SetDelay(absl::Duration delay);
  // Half open: connections stay, new ones are accepted, and nothing passes until Hang(false).
  void Hang(bool hangs);
  // Resets all connections.
  void CutAll();
  // Does so when this many more bytes have come from clients, in the middle of what is being sent.
  void CutAfter(int64_t request_bytes);
  // The next piece of at least a few hundred bytes from the server, a reply with a gradient, is lost, and its
  // connection reset.
  void CutNextReply();
  // Connections that were reset by one of the above.
  int cuts() const;

 private:
  struct Piece {
    absl::Time due;
    std::string bytes;
  };
  struct Way {
    int from;
    int to;
    bool ended = false;  // nothing more comes from `from`
    std::deque<Piece> pieces;
  };
  struct Connection {
    Way requests;
    Way replies;
    bool broken = false;
  };

  void Loop();
  // mutex_ is held in all of these.
  void Accept();
  std::vector<pollfd> Polled(int* timeout_ms);
  void Serve(Connection& connection);
  void Read(Connection& connection, Way& way);
  void Write(Connection& connection, Way& way);
  void CutEverything();
  void Close(Connection& connection);
  void Wake() const;

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  int wake_[2] = {-1, -1};

  mutable std::mutex mutex_;
  std::list<Connection> connections_;
  absl::Duration delay_ = absl::ZeroDuration();
  bool hangs_ = false;
  bool cut_reply_ = false;
  int64_t cut_after_ = -1;  // -1: never
  int cuts_ = 0;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_TCP_PROXY_H_
