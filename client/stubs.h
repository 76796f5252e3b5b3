// Stubs of one gRPC service on several servers.
#ifndef CCS_CLIENT_STUBS_H_
#define CCS_CLIENT_STUBS_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/retry.h"

namespace ccs::client {

// A channel that connects when it is first used: no limit on message sizes, dead peers are noticed, and a
// server that comes back is found within two seconds.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

// Thread-safe. The calls it makes refer to it and to their request and reply, which must all outlive them.
template <typename Service>
class Stubs {
 public:
  using Async = typename Service::StubInterface::async_interface;
  template <typename Request, typename Reply>
  using Method = void (Async::*)(grpc::ClientContext*, const Request*, Reply*,
                                 std::function<void(grpc::Status)>);

  struct Server {
    std::string name;  // for messages
    std::string address;
  };

  explicit Stubs(const std::vector<Server>& servers) {
    for (const Server& server : servers) {
      entries_.push_back({server.name, Service::NewStub(MakeChannel(server.address))});
    }
  }

  // A request that only server `index` can answer.
  template <typename Request, typename Reply>
  Call ToOne(size_t index, Method<Request, Reply> method, const Request* request, Reply* reply) const {
    return {{Target(entries_[index], method, request, reply)}};
  }

  // A request that any server can answer.
  template <typename Request, typename Reply>
  Call ToAny(Method<Request, Reply> method, const Request* request, Reply* reply) const {
    Call call;
    for (const Entry& entry : entries_) call.targets.push_back(Target(entry, method, request, reply));
    return call;
  }

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<typename Service::Stub> stub;
  };

  template <typename Request, typename Reply>
  static Call::Target Target(const Entry& entry, Method<Request, Reply> method, const Request* request,
                             Reply* reply) {
    Async* const async = entry.stub->async();
    return {entry.name, [=](grpc::ClientContext* context, std::function<void(grpc::Status)> done) {
              (async->*method)(context, request, reply, std::move(done));
            }};
  }

  std::vector<Entry> entries_;
};

}  // namespace ccs::client

#endif  // CCS_CLIENT_STUBS_H_
