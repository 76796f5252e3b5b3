// Stubs of one gRPC service on several servers.
#ifndef CCS_CLIENT_STUBS_H_
#define CCS_CLIENT_STUBS_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <mutex>
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

  explicit Stubs(const std::vector<Server>& servers) : servers_(std::make_unique<Servers>()) {
    for (const Server& server : servers) servers_->entries.push_back(MakeEntry(server));
  }

  // As many servers as before, some of which may have another address: attempts that start from now on go
  // there.
  void Move(const std::vector<Server>& servers) const {
    const std::lock_guard lock(servers_->mutex);
    for (size_t i = 0; i < servers.size(); ++i) {
      if (servers_->entries[i]->server.address != servers[i].address) {
        servers_->entries[i] = MakeEntry(servers[i]);
      }
    }
  }

  // A request that only server `index` can answer.
  template <typename Request, typename Reply>
  Call ToOne(size_t index, Method<Request, Reply> method, const Request* request, Reply* reply) const {
    return {{Target(index, method, request, reply)}};
  }

  // A request that any server can answer.
  template <typename Request, typename Reply>
  Call ToAny(Method<Request, Reply> method, const Request* request, Reply* reply) const {
    Call call;
    for (size_t i = 0; i < size(); ++i) call.targets.push_back(Target(i, method, request, reply));
    return call;
  }

 private:
  struct Entry {
    Server server;
    std::unique_ptr<typename Service::Stub> stub;
  };
  struct Servers {
    std::mutex mutex;
    std::vector<std::shared_ptr<const Entry>> entries;
  };

  static std::shared_ptr<const Entry> MakeEntry(const Server& server) {
    return std::make_shared<const Entry>(Entry{server, Service::NewStub(MakeChannel(server.address))});
  }

  size_t size() const {
    const std::lock_guard lock(servers_->mutex);
    return servers_->entries.size();
  }
  std::shared_ptr<const Entry> At(size_t index) const {
    const std::lock_guard lock(servers_->mutex);
    return servers_->entries[index];
  }

  template <typename Request, typename Reply>
  Call::Target Target(size_t index, Method<Request, Reply> method, const Request* request,
                      Reply* reply) const {
    return {At(index)->server.name,
            [=, this](grpc::ClientContext* context, std::function<void(grpc::Status)> done) {
              // What is under way stays with the server that it went to.
              std::shared_ptr<const Entry> entry = At(index);
              (entry->stub->async()->*method)(context, request, reply, std::move(done));
              return entry;
            }};
  }

  std::unique_ptr<Servers> servers_;  // never null
};

}  // namespace ccs::client

#endif  // CCS_CLIENT_STUBS_H_
