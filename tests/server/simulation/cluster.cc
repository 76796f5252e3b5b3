#include "tests/server/simulation/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ccs::simulation {

Cluster::Cluster(World* world, Model* model, const CoordinatorOptions& options)
    : world_(world),
      model_(model),
      options_(options),
      disks_(options.num_shards),
      shards_(options.num_shards) {
  for (int rank = 0; rank < options.num_shards; ++rank) StartShard(rank);
  Tick();
}

// ---------------------------------------------------------------- processes

void Cluster::StartShard(int rank) {
  if (shards_[rank] != nullptr) return;
  if (rank == 0) StartCoordinator();
  shards_[rank] = std::make_shared<Shard>(world_, this, model_, &disks_[rank], rank, options_.num_shards,
                                          options_.keep_checkpoints);
  shards_[rank]->Start();
}

void Cluster::StartCoordinator() {
  coordinator_ = std::make_shared<Coordinator>(options_);
  ++coordinators_;
  coordinator_->Tick(world_->now());
}

void Cluster::Crash(int rank, bool noticed) {
  if (shards_[rank] == nullptr) return;
  shards_[rank].reset();
  if (rank == 0) coordinator_.reset();
  for (auto& [number, stream] : streams_) {
    if (stream.coordinator == nullptr) continue;
    if (rank == 0) {
      world_->After(world_->Delay(), [this, number = number] { Close(number); });
    } else if (stream.rank == rank && noticed) {
      world_->After(world_->Delay(), [this, number = number] { Close(number); });
    }
  }
}

void Cluster::BreakStream(int rank) {
  if (shards_[rank] != nullptr && shards_[rank]->stream() != 0) Close(shards_[rank]->stream());
}

void Cluster::Tick() {
  if (coordinator_ != nullptr) coordinator_->Tick(world_->now());
  world_->After(absl::Milliseconds(100), [this] { Tick(); });
}

// ---------------------------------------------------------------- streams

uint64_t Cluster::Connect(int rank) {
  if (coordinator_ == nullptr) return 0;
  const uint64_t number = streams_.size() + 1;
  Stream& stream = streams_[number];
  stream.rank = rank;
  stream.shard = shards_[rank];
  stream.coordinator = coordinator_;
  stream.coordinator_number = coordinators_;
  stream.last_up = stream.last_down = world_->now();
  stream.connection = coordinator_->Connect([this, number](const v1::CoordinatorMessage& message) {
    world_->At(Arrival(&streams_.at(number).last_down),
               [this, number, message] { FromCoordinator(number, message); });
  });
  return number;
}

int Cluster::CoordinatorOf(uint64_t stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? 0 : found->second.coordinator_number;
}

absl::Time Cluster::Arrival(absl::Time* last) {
  *last = std::max(*last, world_->now() + world_->Delay());
  return *last;
}

void Cluster::ToCoordinator(uint64_t number, const v1::ShardMessage& message) {
  Stream& stream = streams_.at(number);
  if (stream.coordinator == nullptr) return;
  world_->At(Arrival(&stream.last_up), [this, number, message] {
    const Stream& stream = streams_.at(number);
    // A coordinator that is dead is only held by its streams.
    if (stream.coordinator != nullptr && stream.coordinator == coordinator_) {
      coordinator_->Receive(stream.connection, message);
    }
  });
}

void Cluster::FromCoordinator(uint64_t number, const v1::CoordinatorMessage& message) {
  const Stream& stream = streams_.at(number);
  if (stream.coordinator == nullptr) return;
  if (const auto shard = stream.shard.lock()) shard->FromCoordinator(number, message);
}

void Cluster::Close(uint64_t number) {
  Stream& stream = streams_.at(number);
  const std::shared_ptr<Coordinator> coordinator = std::exchange(stream.coordinator, nullptr);
  if (coordinator == nullptr) return;
  if (coordinator == coordinator_)
    coordinator->Disconnect(stream.connection, absl::UnavailableError("reset"));
  if (const auto shard = stream.shard.lock()) shard->StreamLost(number);
}

v1::Register Cluster::Registration(int rank) const {
  v1::Register registration;
  registration.set_rank(rank);
  registration.set_num_shards(options_.num_shards);
  registration.set_address(absl::StrCat("shard-", rank));
  *registration.mutable_spec() = options_.spec;
  registration.set_version(options_.version);
  registration.set_step_log(options_.step_log);
  return registration;
}

// ---------------------------------------------------------------- collectives

void Cluster::Exchange(const std::string& name, const std::vector<Part>& parts,
                       std::function<void(const std::vector<Part>&)> then) {
  Meeting& meeting = meetings_[name];
  meeting.parts.insert(meeting.parts.end(), parts.begin(), parts.end());
  meeting.then.push_back(std::move(then));
  if (static_cast<int>(meeting.then.size()) < options_.num_shards) return;
  Meeting complete = std::move(meetings_.extract(name).mapped());
  std::sort(complete.parts.begin(), complete.parts.end(), [](const Part& a, const Part& b) {
    return std::pair(a.trainer, a.rank) < std::pair(b.trainer, b.rank);
  });
  for (const auto& go_on : complete.then) go_on(complete.parts);
}

}  // namespace ccs::simulation
