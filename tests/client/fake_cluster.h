// Shards on real ports that answer by simple rules, remember what they were asked, and fail on demand.
//
//   class c's centre is [c, c, ...] until written; a step's gradient is gradient_scale * features;
//   an evaluation's loss is the mean of its labels, and even labels are hits; query row r of a request is
//   nearest to classes 10 r, 10 r + 1, ... with cosines 1, 1/2, ...
//
// Faults that a client must survive: any number of UNAVAILABLE, a server that goes away during a call and
// comes back on the same port, staged rows that are lost, a server that never answers (by its deadline).
#ifndef CCS_TESTS_CLIENT_FAKE_CLUSTER_H_
#define CCS_TESTS_CLIENT_FAKE_CLUSTER_H_

#include <grpcpp/support/status.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ccs/v1/admin.pb.h"
#include "ccs/v1/training.pb.h"

namespace ccs::client {

inline constexpr uint64_t kLineage = 0xfedcba9876543210;  // more than a double can hold
inline constexpr int64_t kStep = 10;

// A status as the service sends it, with the detail in grpc-status-details-bin.
grpc::Status DetailedStatus(grpc::StatusCode code, const std::string& message,
                            const ccs::v1::ErrorDetail& detail);

class FakeCluster {
 public:
  FakeCluster(int num_shards, int64_t num_classes, int dim, int max_batch = 0);
  ~FakeCluster();

  const std::string& address(int shard) const;

  // The next `times` requests of `method` at `shard` get `status`. They are remembered all the same.
  void Fail(int shard, const std::string& method, const grpc::Status& status, int times = 1);
  // From now on `method` at `shard` is answered only once Release is called, or when the client is gone.
  void Hang(int shard, const std::string& method);
  void Release();
  // Blocks until `shard` has been asked `method` that many times in all.
  void AwaitRequests(int shard, const std::string& method, size_t count);
  // No Step is answered before this many have arrived over all shards.
  void AnswerStepsTogether(size_t count);
  // Forgets what is staged, once, when the next commit comes.
  void LoseStagedRows();

  // Breaks all connections of the shard, then waits for its handlers. Start brings it back on the same port.
  void Stop(int shard);
  void Start(int shard);
  // Instead of Start: at another port, which the other shards tell from now on.
  void StartElsewhere(int shard);

  // Every request of `method` at `shard`, in order of arrival, as its bytes.
  std::vector<std::string> requests(int shard, const std::string& method) const;
  // The same, parsed.
  template <typename Request>
  std::vector<Request> Requests(int shard, const std::string& method) const {
    std::vector<Request> result;
    for (const std::string& bytes : requests(shard, method)) result.emplace_back().ParseFromString(bytes);
    return result;
  }
  std::map<int64_t, std::vector<float>> written() const;  // committed rows by class id
  int commits() const;
  ccs::v1::StatusReply& status();  // what Admin answers; set it up before the first request

 private:
  struct State;
  class TrainingService;
  class AdminService;
  struct Server;

  std::unique_ptr<State> state_;
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace ccs::client

#endif  // CCS_TESTS_CLIENT_FAKE_CLUSTER_H_
