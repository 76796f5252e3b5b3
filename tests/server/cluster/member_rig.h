// One shard's real parts around a member, and a coordinator's end of the stream to script.
#ifndef CCS_TESTS_SERVER_CLUSTER_MEMBER_RIG_H_
#define CCS_TESTS_SERVER_CLUSTER_MEMBER_RIG_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/cluster/control_stream.h"
#include "server/cluster/member.h"
#include "server/cluster/messages.h"
#include "server/cluster/status_proto.h"

namespace ccs {

// Polls slowly until it holds; false after a time that no test should need.
inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

// Keeps what the shard sends and gives it what the test says. One stream at a time. Thread-safe.
class ScriptedCoordinator : public ControlConnector {
 public:
  using Kind = v1::ShardMessage::KindCase;

  absl::StatusOr<std::unique_ptr<ControlStream>> Connect(ControlHandlers handlers, absl::Duration) override {
    std::lock_guard lock(mutex_);
    ++attempts_;
    if (refusals_ > 0) {
      --refusals_;
      return absl::UnavailableError("nobody is there");
    }
    handlers_ = std::move(handlers);
    received_.clear();
    return std::make_unique<Stream>(this);
  }

  void RefuseNext(int attempts) {
    std::lock_guard lock(mutex_);
    refusals_ = attempts;
  }
  int attempts() const {
    std::lock_guard lock(mutex_);
    return attempts_;
  }
  bool connected() const {
    std::lock_guard lock(mutex_);
    return handlers_.has_value();
  }

  // The next message of a kind, waited for; earlier ones are dropped.
  std::optional<v1::ShardMessage> Next(Kind kind) {
    std::unique_lock lock(mutex_);
    std::optional<v1::ShardMessage> found;
    arrived_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::seconds(10), [&] {
      while (!found && !received_.empty()) {
        if (received_.front().kind_case() == kind) found = received_.front();
        received_.pop_front();
      }
      return found.has_value();
    });
    return found;
  }
  // The next proposal that is not for the coordinator's status.
  std::optional<v1::Propose> NextProposal() {
    while (auto message = Next(Kind::kPropose)) {
      if (!message->propose().has_status()) return message->propose();
    }
    return std::nullopt;
  }

  // Handlers run under a lock of their own: one at a time, and none after the stream is gone.
  void Send(const v1::CoordinatorMessage& message) {
    std::lock_guard delivering(delivery_mutex_);
    if (const auto handlers = CurrentHandlers()) handlers->on_message(message);
  }
  void Close(const absl::Status& why) {
    std::lock_guard delivering(delivery_mutex_);
    if (const auto handlers = CurrentHandlers()) handlers->on_closed(why);
  }

  void Refuse(const absl::Status& status) {
    v1::CoordinatorMessage message;
    *message.mutable_refused()->mutable_status() = StatusToProto(status);
    Send(message);
  }
  void Form(uint64_t epoch) {
    v1::CoordinatorMessage message;
    message.mutable_form()->set_epoch(epoch);
    message.mutable_form()->set_lineage(3);
    message.mutable_form()->set_begins_lineage(true);
    message.mutable_form()->mutable_layout()->add_shards()->set_address("here:1");
    Send(message);
  }
  void Peers(uint64_t epoch, const std::string& blob) {
    v1::CoordinatorMessage message;
    message.mutable_peers()->set_epoch(epoch);
    message.mutable_peers()->add_blobs(blob);
    Send(message);
  }
  void Serve(uint64_t epoch) {
    v1::CoordinatorMessage message;
    message.mutable_serve()->set_epoch(epoch);
    Send(message);
  }
  void Go(const v1::Go& go) {
    v1::CoordinatorMessage message;
    *message.mutable_go() = go;
    Send(message);
  }
  void Disband(const absl::Status& why) {
    v1::CoordinatorMessage message;
    *message.mutable_disband()->mutable_status() = StatusToProto(why);
    Send(message);
  }
  void Result(v1::Result result) {
    v1::CoordinatorMessage message;
    *message.mutable_result() = std::move(result);
    Send(message);
  }

 private:
  class Stream : public ControlStream {
   public:
    explicit Stream(ScriptedCoordinator* coordinator) : coordinator_(coordinator) {}
    ~Stream() override {
      std::lock_guard delivering(coordinator_->delivery_mutex_);
      std::lock_guard lock(coordinator_->mutex_);
      coordinator_->handlers_.reset();
    }
    void Send(v1::ShardMessage message) override {
      std::lock_guard lock(coordinator_->mutex_);
      coordinator_->received_.push_back(std::move(message));
      coordinator_->arrived_.notify_all();
    }

   private:
    ScriptedCoordinator* const coordinator_;
  };

  std::optional<ControlHandlers> CurrentHandlers() const {
    std::lock_guard lock(mutex_);
    return handlers_;
  }

  mutable std::mutex mutex_;
  std::mutex delivery_mutex_;  // before mutex_
  std::condition_variable arrived_;
  int refusals_ = 0;
  int attempts_ = 0;
  std::optional<ControlHandlers> handlers_;
  std::deque<v1::ShardMessage> received_;
};

// A single shard of 10 classes of width 4, whose collective asks for a rendezvous with the blob "own blob".
class MemberRig {
 public:
  static v1::ModelSpec Spec() {
    v1::ModelSpec spec;
    spec.set_num_classes(10);
    spec.set_dim(4);
    spec.set_max_batch(8);
    return spec;
  }
  static MemberOptions Options() {
    MemberOptions options;
    options.registration.set_num_shards(1);
    options.registration.set_address("here:1");
    options.registration.set_process_nonce(11);
    options.registration.set_version("1.0");
    *options.registration.mutable_spec() = Spec();
    options.heartbeat_interval = absl::Milliseconds(20);
    return options;
  }

  MemberRig(const MemberOptions& options, ControlConnector* connector, CheckpointStore* checkpoints = nullptr)
      : member(options, connector), assembler(0, 1, &member) {
    kernels::ShardConfig config;
    config.num_local = 10;
    config.dim = 4;
    config.max_batch = 8;
    backend = kernels::MakeCpuBackend(config).value();
    EngineOptions engine_options;
    engine_options.spec.num_classes = 10;
    engine_options.spec.dim = 4;
    engine_options.spec.max_batch = 8;
    EngineParts parts;
    parts.backend = backend.get();
    parts.assembler = &assembler;
    parts.staged_writes = &staged_writes;
    parts.checkpoints = checkpoints;
    parts.control = &member;
    parts.metrics = &metrics;
    parts.make_collective = [this](absl::Time deadline, const Rendezvous& rendezvous) {
      return MakeCollective(deadline, rendezvous);
    };
    engine = std::make_unique<Engine>(engine_options, parts);
    member.SetParts({engine.get(), &assembler, &staged_writes, checkpoints, nullptr, &metrics});
    member.Start();
  }
  ~MemberRig() { member.Stop(); }

  std::vector<std::string> peers() const {
    std::lock_guard lock(mutex_);
    return peers_;
  }

  Member member;
  StepAssembler assembler;
  StagedWrites staged_writes{4, 1 << 20};
  Metrics metrics{BuildAndSpec{}};
  std::unique_ptr<kernels::ShardBackend> backend;
  std::unique_ptr<Engine> engine;

 private:
  absl::StatusOr<std::unique_ptr<Collective>> MakeCollective(absl::Time deadline,
                                                             const Rendezvous& rendezvous) {
    absl::StatusOr<std::vector<std::string>> met = rendezvous("own blob", deadline);
    if (!met.ok()) return met.status();
    {
      std::lock_guard lock(mutex_);
      peers_ = *met;
    }
    return MakeCpuCollective({.rank = 0, .size = 1, .host = "", .deadline = deadline}, rendezvous);
  }

  mutable std::mutex mutex_;
  std::vector<std::string> peers_;
};

}  // namespace ccs

#endif  // CCS_TESTS_SERVER_CLUSTER_MEMBER_RIG_H_
