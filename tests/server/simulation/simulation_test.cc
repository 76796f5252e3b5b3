// Thousands of short lives of a cluster: the real coordinator, recovery, assembler, ledger and change
// records, under a simulated clock, network and disk, against a model that sees everything. What goes wrong,
// and when, is a pure function of the seed: CCS_SIMULATION_SEED=N runs that one alone, with its log.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cluster/messages.h"
#include "tests/server/simulation/cluster.h"
#include "tests/server/simulation/model.h"
#include "tests/server/simulation/trainer.h"
#include "tests/server/simulation/world.h"

namespace ccs::simulation {
namespace {

constexpr int kSeeds = CCS_SIMULATION_SEEDS;
constexpr absl::Duration kTroubled = absl::Seconds(40);  // after that nothing more goes wrong
constexpr absl::Duration kLongest = absl::Minutes(10);

class Life {
 public:
  explicit Life(uint64_t seed)
      : world_(seed),
        num_trainers_(1 + world_.Below(4)),
        last_step_(10 + world_.Below(30)),
        start_(world_.now()),
        cluster_(&world_, &model_, Options(&world_)),
        trainers_(num_trainers_) {
    for (int rank = 0; rank < num_trainers_; ++rank) {
      files_.push_back(std::make_shared<Backbone>());
      StartTrainer(rank);
    }
    MakeTrouble();
    Write();
  }

  // Until every trainer is at its end.
  void Live() {
    for (absl::Time until = start_ + kTroubled; until < start_ + kLongest; until += absl::Seconds(5)) {
      world_.RunUntil(until);
      if (is_over()) break;
    }
    world_.RunUntil(world_.now() + absl::Seconds(30));  // what is still under way comes to its end
    CheckEnd();
  }

  const Model& model() const { return model_; }
  int troubles() const { return troubles_; }
  int writes() const { return static_cast<int>(writes_); }

 private:
  static CoordinatorOptions Options(World* world) {
    CoordinatorOptions options;
    options.num_shards = 1 + world->Below(4);
    options.spec.set_num_classes(100);
    options.spec.set_dim(1);
    options.version = "simulated";
    options.has_checkpoint_dir = true;
    options.step_log = true;
    options.keep_checkpoints = 1 + world->Below(3);
    options.checkpoint_interval_steps = world->Below(6);
    options.step_timeout = absl::Seconds(5);
    options.heartbeat_timeout = absl::Seconds(4);
    options.stall_timeout = absl::Seconds(30);
    options.make_nonce = [world] { return world->Bits(); };
    return options;
  }

  bool is_over() const {
    for (const auto& trainer : trainers_) {
      if (!trainer->finished()) return false;
    }
    return true;
  }

  void StartTrainer(int rank, std::optional<int64_t> resume_step = std::nullopt) {
    trainers_[rank] =
        std::make_shared<Trainer>(&world_, &cluster_, &model_, rank, num_trainers_, last_step_, files_[rank]);
    if (resume_step) trainers_[rank]->GoBackTo(*resume_step);
    trainers_[rank]->Start();
  }

  // ---------------------------------------------------------------- what goes wrong

  void MakeTrouble() {
    world_.After(absl::Milliseconds(100 + world_.Below(4000)), [this] {
      if (world_.now() > start_ + kTroubled) return;
      ++troubles_;
      const int rank = world_.Below(cluster_.num_shards());
      switch (world_.Below(12)) {
        case 0:
        case 1:
          Crash(rank);
          break;
        case 2:
          for (int other = 0; other < cluster_.num_shards(); ++other) Crash(other);
          break;
        case 3:
          cluster_.BreakStream(rank);
          break;
        case 4:
          if (const auto shard = cluster_.shard(rank)) {
            shard->StopUntil(world_.now() + absl::Milliseconds(100 + world_.Below(8000)));
          }
          break;
        case 5:
          RestartTrainer();
          break;
        case 6:
          cluster_.disk(rank).log->set_disk_full(true);
          world_.After(absl::Milliseconds(100 + world_.Below(5000)),
                       [this, rank] { cluster_.disk(rank).log->set_disk_full(false); });
          break;
        case 7:
        case 8:
          SendNonsense(rank);
          break;
        case 9:
          if (world_.Chance(0.3)) LoseLog(rank);
          break;
        case 10:
          if (world_.Chance(0.3)) GoBack();
          break;
        default:
          TakeOrReleaseCheckpoint(rank);
          break;
      }
      MakeTrouble();
    });
  }

  void Crash(int rank) {
    cluster_.Crash(rank, /*noticed=*/world_.Chance(0.8));
    world_.After(absl::Milliseconds(50 + world_.Below(5000)), [this, rank] { cluster_.StartShard(rank); });
  }

  void RestartTrainer() {
    const int rank = world_.Below(num_trainers_);
    trainers_[rank]->BeReplaced();
    if (world_.Chance(0.5)) former_.push_back(trainers_[rank]);  // it lives on for a while
    StartTrainer(rank);
  }

  // Nothing of it may ever take part in a step, or have an answer.
  void SendNonsense(int rank) {
    const auto shard = cluster_.shard(rank);
    if (shard == nullptr) return;
    Slice slice;
    slice.run_id = world_.Chance(0.2) ? "another run" : "run";
    slice.incarnation = world_.Bits();
    slice.lineage = shard->position().lineage + world_.Below(2);
    slice.trainer_rank = world_.Below(6) - 1;
    slice.step = shard->position().step + world_.Below(4) - 1;
    slice.labels = {static_cast<int64_t>(world_.Bits() >> 1)};
    slice.features = {2.0f};
    slice.digest = world_.Bits();
    shard->Submit(slice, [this](const auto& reply) {
      if (reply.ok()) model_.Violated("nonsense was answered");
    });
  }

  // A disk is replaced by one that has the checkpoints alone. If nothing else speaks of the lineage, nobody
  // can know that its number was used; without any checkpoint the operator would have to step in.
  void LoseLog(int rank) {
    for (int other = 0; other < cluster_.num_shards(); ++other) {
      const auto& held = cluster_.disk(other).checkpoints;
      if (held.empty() || held.rbegin()->first != cluster_.disk(0).checkpoints.rbegin()->first) return;
      if (held.rbegin()->first.lineage != model_.lineage()) return;
    }
    model_.AllowNewLineage();
    Crash(rank);
    cluster_.disk(rank).log = std::make_unique<testing::MemoryStepLog>();
  }

  // All trainers load their files of an earlier step.
  void GoBack() {
    model_.AllowNewLineage();
    int64_t step = last_step_;
    for (const auto& file : files_) step = std::min(step, file->step);
    step = std::max<int64_t>(0, step - world_.Below(8));
    for (int rank = 0; rank < num_trainers_; ++rank) {
      trainers_[rank]->BeReplaced();
      StartTrainer(rank, step);
    }
  }

  void TakeOrReleaseCheckpoint(int rank) {
    const auto shard = cluster_.shard(rank);
    if (shard == nullptr) return;
    v1::Propose proposal;
    const auto& held = cluster_.disk(rank).checkpoints;
    if (!held.empty() && world_.Chance(0.3)) {
      *proposal.mutable_release_checkpoint()->mutable_id() = CheckpointIdToProto(held.begin()->first);
    } else {
      proposal.mutable_checkpoint();
    }
    shard->Propose(proposal, [](const auto&) {});
  }

  // ---------------------------------------------------------------- writes of centres

  void Write() {
    world_.After(absl::Milliseconds(500 + world_.Below(8000)), [this] {
      if (world_.now() > start_ + kTroubled) return;
      Commit(absl::StrCat("write-", ++writes_), /*tries=*/100);
      Write();
    });
  }

  // The rows are sent anew with every try, as the client library does.
  void Commit(const std::string& write_id, int tries) {
    if (tries == 0) return;
    int staged = 0;
    for (int rank = 0; rank < cluster_.num_shards(); ++rank) {
      if (const auto shard = cluster_.shard(rank)) {
        shard->Stage(write_id);
        ++staged;
      }
    }
    const auto again = [this, write_id, tries] {
      world_.After(absl::Milliseconds(500), [this, write_id, tries] { Commit(write_id, tries - 1); });
    };
    const auto shard = cluster_.shard(world_.Below(cluster_.num_shards()));
    if (shard == nullptr || staged < cluster_.num_shards()) return again();
    v1::Propose proposal;
    proposal.mutable_commit_write()->set_write_id(write_id);
    proposal.mutable_commit_write()->set_rows(cluster_.num_shards());
    shard->Propose(proposal, [this, write_id, again](const absl::StatusOr<v1::Result>& result) {
      if (result.ok()) return model_.WriteAcknowledged(write_id);
      again();
    });
  }

  void CheckEnd() {
    if (!is_over()) {
      std::vector<int64_t> steps;
      for (const auto& trainer : trainers_) steps.push_back(trainer->step());
      return model_.Violated(absl::StrCat("no progress: the trainers are at steps ",
                                          absl::StrJoin(steps, ", "), " of ", last_step_));
    }
    for (int rank = 0; rank < cluster_.num_shards(); ++rank) {
      const auto shard = cluster_.shard(rank);
      if (shard == nullptr || shard->rows() != cluster_.shard(0)->rows() ||
          shard->position().step != last_step_) {
        return model_.Violated(absl::StrCat("shard ", rank, " is not where shard 0 is, at the end"));
      }
    }
    model_.Ends(cluster_.shard(0)->rows());
  }

  World world_;
  Model model_;
  const int num_trainers_;
  const int64_t last_step_;
  const absl::Time start_;
  Cluster cluster_;
  std::vector<std::shared_ptr<Backbone>> files_;
  std::vector<std::shared_ptr<Trainer>> trainers_;
  std::vector<std::shared_ptr<Trainer>> former_;
  int troubles_ = 0;
  int64_t writes_ = 0;
};

TEST(SimulationTest, EveryLifeEndsWithAllStepsTakenOnce) {
  uint64_t first = 1;
  int count = kSeeds;
  const char* one = std::getenv("CCS_SIMULATION_SEED");
  if (one != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(one, &first));
    count = 1;
  } else {
    spdlog::set_level(spdlog::level::off);
  }
  int64_t steps = 0;
  int64_t troubles = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Life life(seed);
    life.Live();
    steps += life.model().steps_acknowledged();
    troubles += life.troubles();
    ASSERT_TRUE(life.model().violations().empty()) << "CCS_SIMULATION_SEED=" << seed << ":\n"
                                                   << absl::StrJoin(life.model().violations(), "\n");
  }
  std::cout << count << " lives, " << troubles << " troubles, " << steps << " acknowledged steps\n";
  EXPECT_GT(steps, 10 * count);
  EXPECT_GT(troubles, 5 * count);
}

}  // namespace
}  // namespace ccs::simulation
