#include "tests/client/fake_cluster.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "ccs/v1/admin.grpc.pb.h"
#include "ccs/v1/training.grpc.pb.h"

namespace ccs::client {
namespace {

constexpr auto kCancelCheckPeriod = std::chrono::milliseconds(10);

using Key = std::pair<int, std::string>;  // shard and method

std::vector<float> Values(const ccs::v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), tensor.data().data(), tensor.data().size());
  return values;
}

void SetTensor(int64_t rows, int64_t cols, const std::vector<float>& values, ccs::v1::Tensor* tensor) {
  tensor->set_dtype(ccs::v1::FLOAT32);
  tensor->set_rows(rows);
  tensor->set_cols(cols);
  tensor->set_data(values.data(), values.size() * sizeof(float));
}

}  // namespace

grpc::Status DetailedStatus(grpc::StatusCode code, const std::string& message,
                            const ccs::v1::ErrorDetail& detail) {
  ccs::v1::RichStatus rich;
  rich.set_code(code);
  rich.set_message(message);
  rich.add_details()->PackFrom(detail);
  return {code, message, rich.SerializeAsString()};
}

struct FakeCluster::State {
  mutable std::mutex mutex;
  std::condition_variable changed;
  ccs::v1::DescribeReply description;
  ccs::v1::StatusReply status;
  std::map<Key, std::vector<std::string>> requests;
  std::map<Key, std::vector<grpc::Status>> failures;
  std::set<Key> hanging;
  bool released = false;
  size_t steps = 0;
  size_t steps_together = 0;
  std::map<std::string, std::map<int64_t, std::vector<float>>> staged;  // by write id
  std::map<int64_t, std::vector<float>> written;
  int commits = 0;
  bool lose_staged_rows = false;

  // Remembers the request, then waits or fails as told.
  grpc::Status Enter(int shard, const std::string& method, const google::protobuf::Message& request,
                     const grpc::ServerContext& context) {
    const Key key(shard, method);
    std::unique_lock lock(mutex);
    requests[key].push_back(request.SerializeAsString());
    if (method == "Step") ++steps;
    changed.notify_all();
    const auto answer = [&] {
      return released || (!hanging.contains(key) && (method != "Step" || steps >= steps_together));
    };
    // gRPC has no way to wait for both: looks now and then whether the client is still there.
    while (!changed.wait_for(lock, kCancelCheckPeriod, answer) && !context.IsCancelled()) {
    }
    std::vector<grpc::Status>& queue = failures[key];
    if (queue.empty()) return grpc::Status::OK;
    grpc::Status status = queue.front();
    queue.erase(queue.begin());
    return status;
  }

  // With the shards where they are now.
  ccs::v1::DescribeReply Description() {
    const std::lock_guard lock(mutex);
    return description;
  }
};

class FakeCluster::TrainingService final : public ccs::v1::Training::Service {
 public:
  TrainingService(State* state, int shard) : state_(state), shard_(shard) {}

  grpc::Status Describe(grpc::ServerContext* context, const ccs::v1::DescribeRequest* request,
                        ccs::v1::DescribeReply* reply) override {
    if (const auto status = state_->Enter(shard_, "Describe", *request, *context); !status.ok())
      return status;
    *reply = state_->Description();
    return grpc::Status::OK;
  }

  grpc::Status OpenRun(grpc::ServerContext* context, const ccs::v1::OpenRunRequest* request,
                       ccs::v1::OpenRunReply* reply) override {
    if (const auto status = state_->Enter(shard_, "OpenRun", *request, *context); !status.ok()) return status;
    reply->set_incarnation(77);
    *reply->mutable_position() = state_->description.position();
    *reply->mutable_spec() = state_->description.spec();
    *reply->mutable_layout() = state_->Description().layout();
    return grpc::Status::OK;
  }

  grpc::Status CloseRun(grpc::ServerContext* context, const ccs::v1::CloseRunRequest* request,
                        ccs::v1::CloseRunReply*) override {
    return state_->Enter(shard_, "CloseRun", *request, *context);
  }

  grpc::Status Step(grpc::ServerContext* context, const ccs::v1::StepRequest* request,
                    ccs::v1::StepReply* reply) override {
    if (const auto status = state_->Enter(shard_, "Step", *request, *context); !status.ok()) return status;
    std::vector<float> gradient = Values(request->features());
    for (float& value : gradient) value *= request->gradient_scale();
    reply->set_step(request->step());
    reply->set_loss(1.5);
    SetTensor(request->features().rows(), request->features().cols(), gradient,
              reply->mutable_feature_grad());
    reply->mutable_statistics()->set_sampled_classes(10 + shard_);
    return grpc::Status::OK;
  }

  grpc::Status Evaluate(grpc::ServerContext* context, const ccs::v1::EvaluateRequest* request,
                        ccs::v1::EvaluateReply* reply) override {
    if (const auto status = state_->Enter(shard_, "Evaluate", *request, *context); !status.ok())
      return status;
    double sum = 0;
    for (const int64_t label : request->labels()) {
      if (label < 0) continue;
      sum += static_cast<double>(label);
      reply->set_labelled_rows(reply->labelled_rows() + 1);
      if (label % 2 == 0) reply->set_rank1_hits(reply->rank1_hits() + 1);
    }
    if (reply->labelled_rows() > 0) reply->set_loss(sum / static_cast<double>(reply->labelled_rows()));
    return grpc::Status::OK;
  }

  grpc::Status Nearest(grpc::ServerContext* context, const ccs::v1::NearestRequest* request,
                       ccs::v1::NearestReply* reply) override {
    if (const auto status = state_->Enter(shard_, "Nearest", *request, *context); !status.ok()) return status;
    reply->set_k(request->k());
    for (int64_t row = 0; row < request->queries().rows(); ++row) {
      for (int place = 0; place < request->k(); ++place) {
        reply->add_class_ids(row * 10 + place);
        reply->add_cosines(1.0f / static_cast<float>(place + 1));
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status ReadCentres(grpc::ServerContext* context, const ccs::v1::ReadCentresRequest* request,
                           ccs::v1::ReadCentresReply* reply) override {
    if (const auto status = state_->Enter(shard_, "ReadCentres", *request, *context); !status.ok())
      return status;
    const std::lock_guard lock(state_->mutex);
    const int dim = state_->description.spec().dim();
    std::vector<float> values;
    for (const int64_t id : request->class_ids()) {
      if (!Owns(id)) return NotOwned(id);
      const auto row = state_->written.find(id);
      if (row != state_->written.end()) {
        values.insert(values.end(), row->second.begin(), row->second.end());
      } else {
        values.insert(values.end(), dim, static_cast<float>(id));
      }
    }
    SetTensor(request->class_ids_size(), dim, values, reply->mutable_centres());
    return grpc::Status::OK;
  }

  grpc::Status WriteCentres(grpc::ServerContext* context, const ccs::v1::WriteCentresRequest* request,
                            ccs::v1::WriteCentresReply* reply) override {
    const char* method = request->has_commit_rows() ? "Commit" : "Stage";
    if (const auto status = state_->Enter(shard_, method, *request, *context); !status.ok()) return status;
    const std::lock_guard lock(state_->mutex);
    auto& staged = state_->staged[request->write_id()];
    if (request->has_commit_rows()) return Commit(*request, &staged, reply);
    const std::vector<float> values = Values(request->centres());
    const int dim = state_->description.spec().dim();
    for (int i = 0; i < request->class_ids_size(); ++i) {
      const int64_t id = request->class_ids(i);
      if (!Owns(id)) return NotOwned(id);
      staged[id].assign(values.begin() + i * dim, values.begin() + (i + 1) * dim);
    }
    return grpc::Status::OK;
  }

 private:
  bool Owns(int64_t id) const {
    const ccs::v1::ShardInfo& info = state_->description.layout().shards(shard_);
    return id >= info.class_start() && id < info.class_start() + info.num_classes();
  }

  grpc::Status NotOwned(int64_t id) const {
    return {grpc::INVALID_ARGUMENT,
            "shard " + std::to_string(shard_) + " does not own " + std::to_string(id)};
  }

  grpc::Status Commit(const ccs::v1::WriteCentresRequest& request,
                      std::map<int64_t, std::vector<float>>* staged, ccs::v1::WriteCentresReply* reply) {
    if (std::exchange(state_->lose_staged_rows, false)) staged->clear();
    if (static_cast<int64_t>(staged->size()) != request.commit_rows()) {
      ccs::v1::ErrorDetail detail;
      detail.set_reason("staged_rows_missing");
      return DetailedStatus(grpc::FAILED_PRECONDITION, "rows are missing", detail);
    }
    for (const auto& [id, row] : *staged) state_->written[id] = row;
    ++state_->commits;
    reply->set_committed_rows(request.commit_rows());
    return grpc::Status::OK;
  }

  State* const state_;
  const int shard_;
};

class FakeCluster::AdminService final : public ccs::v1::Admin::Service {
 public:
  AdminService(State* state, int shard) : state_(state), shard_(shard) {}

  grpc::Status Status(grpc::ServerContext* context, const ccs::v1::StatusRequest* request,
                      ccs::v1::StatusReply* reply) override {
    if (const auto status = state_->Enter(shard_, "Status", *request, *context); !status.ok()) return status;
    *reply = state_->status;
    return grpc::Status::OK;
  }

  grpc::Status ListCheckpoints(grpc::ServerContext* context, const ccs::v1::ListCheckpointsRequest* request,
                               ccs::v1::ListCheckpointsReply* reply) override {
    if (const auto status = state_->Enter(shard_, "ListCheckpoints", *request, *context); !status.ok())
      return status;
    *reply->add_checkpoints() = state_->status.last_checkpoint();
    reply->mutable_checkpoints(0)->set_kept(true);
    for (const auto& [first, last] : {std::pair(0, 0), std::pair(11, 12)}) {
      ccs::v1::StepRange* range = reply->add_window();
      range->set_first(first);
      range->set_last(last);
    }
    return grpc::Status::OK;
  }

  grpc::Status ReleaseCheckpoint(grpc::ServerContext* context,
                                 const ccs::v1::ReleaseCheckpointRequest* request,
                                 ccs::v1::ReleaseCheckpointReply*) override {
    return state_->Enter(shard_, "ReleaseCheckpoint", *request, *context);
  }

  grpc::Status Checkpoint(grpc::ServerContext* context, const ccs::v1::CheckpointRequest* request,
                          ccs::v1::CheckpointReply* reply) override {
    if (const auto status = state_->Enter(shard_, "Checkpoint", *request, *context); !status.ok())
      return status;
    *reply->mutable_checkpoint() = state_->status.last_checkpoint();
    return grpc::Status::OK;
  }

 private:
  State* const state_;
  const int shard_;
};

struct FakeCluster::Server {
  Server(State* state, int shard) : training(state, shard), admin(state, shard) {}

  void Start(const std::string& listen) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&training);
    builder.RegisterService(&admin);
    server = builder.BuildAndStart();
    if (address.empty()) address = "127.0.0.1:" + std::to_string(port);
  }

  TrainingService training;
  AdminService admin;
  std::string address;
  std::unique_ptr<grpc::Server> server;
};

FakeCluster::FakeCluster(int num_shards, int64_t num_classes, int dim, int max_batch)
    : state_(std::make_unique<State>()) {
  ccs::v1::DescribeReply& description = state_->description;
  description.mutable_spec()->set_num_classes(num_classes);
  description.mutable_spec()->set_dim(dim);
  description.mutable_spec()->set_max_batch(max_batch);
  description.mutable_position()->set_lineage(kLineage);
  description.mutable_position()->set_step(kStep);
  description.set_version("fake");
  for (int rank = 0; rank < num_shards; ++rank) {
    servers_.push_back(std::make_unique<Server>(state_.get(), rank));
    servers_.back()->Start("127.0.0.1:0");
    ccs::v1::ShardInfo* info = description.mutable_layout()->add_shards();
    info->set_rank(rank);
    info->set_address(servers_.back()->address);
    info->set_class_start(num_classes / num_shards * rank +
                          std::min<int64_t>(rank, num_classes % num_shards));
    info->set_num_classes(num_classes / num_shards + (rank < num_classes % num_shards ? 1 : 0));
  }
}

FakeCluster::~FakeCluster() {
  Release();
  for (const auto& server : servers_) {
    if (server->server != nullptr) server->server->Shutdown(std::chrono::system_clock::now());
  }
}

const std::string& FakeCluster::address(int shard) const { return servers_[shard]->address; }

void FakeCluster::Fail(int shard, const std::string& method, const grpc::Status& status, int times) {
  const std::lock_guard lock(state_->mutex);
  std::vector<grpc::Status>& queue = state_->failures[{shard, method}];
  queue.insert(queue.end(), times, status);
}

void FakeCluster::Hang(int shard, const std::string& method) {
  const std::lock_guard lock(state_->mutex);
  state_->released = false;
  state_->hanging.insert({shard, method});
}

void FakeCluster::Release() {
  const std::lock_guard lock(state_->mutex);
  state_->released = true;
  state_->hanging.clear();
  state_->changed.notify_all();
}

void FakeCluster::AwaitRequests(int shard, const std::string& method, size_t count) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->requests[{shard, method}].size() >= count; });
}

void FakeCluster::AnswerStepsTogether(size_t count) {
  const std::lock_guard lock(state_->mutex);
  state_->steps_together = count;
}

void FakeCluster::LoseStagedRows() {
  const std::lock_guard lock(state_->mutex);
  state_->lose_staged_rows = true;
}

void FakeCluster::Stop(int shard) {
  servers_[shard]->server->Shutdown(std::chrono::system_clock::now());
  servers_[shard]->server.reset();
}

void FakeCluster::Start(int shard) { servers_[shard]->Start(servers_[shard]->address); }

void FakeCluster::StartElsewhere(int shard) {
  const std::string before = std::exchange(servers_[shard]->address, "");
  do {
    servers_[shard]->address.clear();
    servers_[shard]->Start("127.0.0.1:0");
  } while (servers_[shard]->address == before);
  const std::lock_guard lock(state_->mutex);
  state_->description.mutable_layout()->mutable_shards(shard)->set_address(servers_[shard]->address);
}

std::vector<std::string> FakeCluster::requests(int shard, const std::string& method) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->requests.find({shard, method});
  return found == state_->requests.end() ? std::vector<std::string>() : found->second;
}

std::map<int64_t, std::vector<float>> FakeCluster::written() const {
  const std::lock_guard lock(state_->mutex);
  return state_->written;
}

int FakeCluster::commits() const {
  const std::lock_guard lock(state_->mutex);
  return state_->commits;
}

ccs::v1::StatusReply& FakeCluster::status() { return state_->status; }

}  // namespace ccs::client
