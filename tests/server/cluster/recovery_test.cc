#include "server/cluster/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "server/cluster/messages.h"

namespace ccs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const CheckpointId kA{1, 10, 5};
const CheckpointId kB{1, 20, 3};
const CheckpointId kB2{1, 20, 4};
const CheckpointId kC{2, 15, 1};

// What the ranks hold. Checkpoint indices equal their steps, unless given.
struct Disks {
  explicit Disks(int num_ranks)
      : catalogue(num_ranks, 10), checkpoints(num_ranks), registrations(num_ranks) {}

  void Checkpoint(int rank, const CheckpointId& id, std::optional<int64_t> index = std::nullopt) {
    v1::CheckpointInfo* info = checkpoints[rank].Add();
    *info->mutable_id() = CheckpointIdToProto(id);
    info->set_index(index.value_or(id.step));
  }
  void CheckpointEverywhere(const CheckpointId& id, std::optional<int64_t> index = std::nullopt) {
    for (size_t rank = 0; rank < registrations.size(); ++rank) Checkpoint(static_cast<int>(rank), id, index);
  }
  // Every record is a step.
  void Log(int rank, uint64_t lineage, const Origin& origin, int64_t begin_step, int64_t first,
           int64_t last) {
    *registrations[rank].add_logs() =
        LoggedLineageToProto({lineage, "", begin_step, first, last, begin_step + last}, origin);
  }
  void LogEverywhere(uint64_t lineage, const Origin& origin, int64_t begin_step, int64_t first,
                     int64_t last) {
    for (size_t rank = 0; rank < registrations.size(); ++rank) {
      Log(static_cast<int>(rank), lineage, origin, begin_step, first, last);
    }
  }
  void Memory(int rank, const Position& position) {
    *registrations[rank].mutable_memory() = PositionToProto(position);
    registrations[rank].set_has_served(true);
  }

  absl::StatusOr<Recovery> Plan(RecoveryInput input = {}) {
    for (size_t rank = 0; rank < registrations.size(); ++rank) {
      catalogue.SetRank(static_cast<int>(rank), checkpoints[rank]);
      input.ranks.push_back(&registrations[rank]);
    }
    input.checkpoints = &catalogue;
    return PlanRecovery(input);
  }

  CheckpointCatalogue catalogue;
  std::vector<google::protobuf::RepeatedPtrField<v1::CheckpointInfo>> checkpoints;
  std::vector<v1::Register> registrations;
};

RecoveryInput Served(uint64_t lineage, int64_t step, std::optional<CheckpointId> began_from = std::nullopt) {
  RecoveryInput input;
  input.known = {lineage, step, 0};
  input.last_lineage = lineage;
  input.began_from = began_from;
  return input;
}

// ---------------------------------------------------------------- without a log

struct FirstCase {
  ResumePolicy policy;
  std::vector<std::vector<CheckpointId>> ranks;
  absl::StatusCode code;
  std::optional<CheckpointId> chosen;
};

TEST(RecoveryTest, ChoosesTheCheckpointThatAFreshClusterBeginsWith) {
  const ResumePolicy latest;
  const ResumePolicy none{ResumePolicy::Kind::kNone};
  const auto step = [](int64_t step) { return ResumePolicy{ResumePolicy::Kind::kStep, step}; };
  using absl::StatusCode;
  const std::vector<FirstCase> cases = {
      {latest, {{}, {}}, StatusCode::kOk, std::nullopt},
      {latest, {{kA, kB}, {kA, kB}}, StatusCode::kOk, kB},
      {latest, {{kA, kB}, {kA}}, StatusCode::kOk, kA},
      {latest, {{kA, kB, kC}, {kC, kB, kA}}, StatusCode::kOk, kC},  // a later lineage beats a later step
      {latest, {{kB, kB2}, {kB, kB2}}, StatusCode::kOk, kB2},
      {latest, {{kB}, {kB2}}, StatusCode::kFailedPrecondition, {}},  // the nonce tells attempts apart
      {latest, {{kA}, {}}, StatusCode::kFailedPrecondition, {}},
      {latest, {{}, {kA}}, StatusCode::kFailedPrecondition, {}},
      {none, {{kA, kB}, {kA, kB}}, StatusCode::kOk, std::nullopt},
      {none, {{kA}, {kB}}, StatusCode::kOk, std::nullopt},
      {step(10), {{kA, kB}, {kA, kB}}, StatusCode::kOk, kA},
      {step(20), {{kB, kB2}, {kB, kB2}}, StatusCode::kOk, kB2},
      {step(20), {{kA, kB}, {kA}}, StatusCode::kNotFound, {}},
      {step(0), {{}, {}}, StatusCode::kNotFound, {}},
      {step(10), {{kA}, {}}, StatusCode::kFailedPrecondition, {}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    Disks disks(static_cast<int>(cases[i].ranks.size()));
    for (size_t rank = 0; rank < cases[i].ranks.size(); ++rank) {
      for (const CheckpointId& id : cases[i].ranks[rank]) disks.Checkpoint(static_cast<int>(rank), id);
    }
    RecoveryInput input;
    input.policy = cases[i].policy;
    const auto recovery = disks.Plan(input);
    EXPECT_EQ(recovery.status().code(), cases[i].code) << recovery.status();
    if (!recovery.ok()) continue;
    EXPECT_EQ(recovery->origin.checkpoint, cases[i].chosen);
    EXPECT_TRUE(recovery->begins_lineage);
    EXPECT_TRUE(recovery->origin.replays.empty());
  }
}

TEST(RecoveryTest, WithoutALogABrokenClusterGoesBackInItsOwnHistoryAndSaysWhatIsLost) {
  const auto plan = [](const std::vector<CheckpointId>& ids, const RecoveryInput& input) {
    Disks disks(2);
    for (const CheckpointId& id : ids) disks.CheckpointEverywhere(id);
    return disks.Plan(input);
  };
  auto recovery = plan({kA, kB, kC}, Served(1, 23)).value();
  EXPECT_EQ(recovery.origin.checkpoint, kB) << "its own newest";
  EXPECT_EQ(recovery.lineage, 3u);
  EXPECT_EQ(recovery.lost, "steps 21 to 23 are lost");
  EXPECT_EQ(plan({kA, kB, kC}, Served(3, 12, kA))->origin.checkpoint, kA) << "where it began";
  EXPECT_EQ(plan({kA, kC}, Served(2, 16, kA))->origin.checkpoint, kC) << "its own before where it began";
  EXPECT_EQ(plan({kA, kB}, Served(3, 1)).status().code(), absl::StatusCode::kFailedPrecondition)
      << "a history that --resume=none has left is not gone back to";
  EXPECT_EQ(plan({}, Served(1, 4))->lost, "steps 1 to 4 are lost");
}

// ---------------------------------------------------------------- memory

TEST(RecoveryTest, GoesOnFromMemoryWhereAllStandAlike) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  for (int rank = 0; rank < 2; ++rank) disks.Memory(rank, {1, 12, 13});
  const auto recovery = disks.Plan(Served(1, 13)).value();
  EXPECT_TRUE(recovery.from_memory);
  EXPECT_FALSE(recovery.begins_lineage);
  EXPECT_EQ(recovery.lineage, 1u);
  EXPECT_TRUE(recovery.origin.replays.empty());
  EXPECT_EQ(recovery.lost, "");
}

TEST(RecoveryTest, ReplaysWhatAllHaveLoggedOntoMemory) {
  Disks disks(2);
  for (int rank = 0; rank < 2; ++rank) disks.Memory(rank, {1, 12, 12});
  disks.LogEverywhere(1, {}, 0, 1, 13);
  const auto recovery = disks.Plan(Served(1, 13)).value();
  EXPECT_TRUE(recovery.from_memory);
  EXPECT_EQ(recovery.origin, (Origin{std::nullopt, {{1, 13}}}));
  EXPECT_EQ(recovery.step, 13);
}

TEST(RecoveryTest, MemoryThatDiffersOrIsMissingDoesNotCount) {
  for (const bool missing : {false, true}) {
    Disks disks(2);
    disks.Memory(0, {1, 12, 12});
    if (!missing) disks.Memory(1, {1, 11, 11});
    disks.LogEverywhere(1, {}, 0, 1, 12);
    const auto recovery = disks.Plan(Served(1, 12)).value();
    EXPECT_FALSE(recovery.from_memory);
    EXPECT_FALSE(recovery.begins_lineage);
    EXPECT_EQ(recovery.origin, (Origin{std::nullopt, {{1, 12}}})) << "from where the lineage began";
  }
}

// ---------------------------------------------------------------- the log

TEST(RecoveryTest, TheNewestCheckpointAndTheLogGoOnInTheSameLineage) {
  Disks disks(3);
  disks.CheckpointEverywhere(kA);
  disks.Checkpoint(0, kB);  // not whole
  disks.LogEverywhere(1, {}, 0, 5, 25);
  for (const RecoveryInput& input : {Served(1, 25), RecoveryInput{}}) {
    const auto recovery = disks.Plan(input).value();
    EXPECT_EQ(recovery.origin, (Origin{kA, {{1, 25}}}));
    EXPECT_EQ(recovery.lineage, 1u);
    EXPECT_FALSE(recovery.begins_lineage);
    EXPECT_EQ(recovery.step, 25);
    EXPECT_EQ(recovery.lost, "");
  }
}

TEST(RecoveryTest, OneRecordMoreOnSomeRanksIsOfAStepThatNobodyWasToldOf) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  disks.Log(0, 1, {}, 0, 1, 26);
  disks.Log(1, 1, {}, 0, 1, 25);
  const auto recovery = disks.Plan(Served(1, 26)).value();
  EXPECT_EQ(recovery.origin, (Origin{kA, {{1, 25}}}));
  EXPECT_FALSE(recovery.begins_lineage);
}

TEST(RecoveryTest, MoreThanThatIsALossInANewLineage) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  disks.Log(0, 1, {}, 0, 1, 27);
  disks.Log(1, 1, {}, 0, 1, 25);
  const auto recovery = disks.Plan(Served(1, 27)).value();
  EXPECT_EQ(recovery.origin, (Origin{kA, {{1, 25}}}));
  EXPECT_TRUE(recovery.begins_lineage);
  EXPECT_EQ(recovery.lineage, 2u);
  EXPECT_EQ(recovery.step, 25);
  EXPECT_EQ(recovery.lost, "steps 26 to 27 are lost; the log of rank 1 ends at step 25");
}

TEST(RecoveryTest, ALossBeforeTheFirstCheckpointGoesBackToWhatAllHaveLogged) {
  Disks disks(2);
  disks.Log(0, 1, {}, 0, 1, 7);
  disks.Log(1, 1, {}, 0, 1, 2);
  const auto recovery = disks.Plan(Served(1, 7)).value();
  EXPECT_EQ(recovery.origin, (Origin{std::nullopt, {{1, 2}}}));
  EXPECT_TRUE(recovery.begins_lineage);
  EXPECT_EQ(recovery.step, 2);
  EXPECT_EQ(recovery.lost, "steps 3 to 7 are lost; the log of rank 1 ends at step 2");
}

TEST(RecoveryTest, ALogThatWasLostIsALossBackToTheCheckpoint) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  disks.Log(0, 1, {}, 0, 1, 27);
  const auto recovery = disks.Plan().value();
  EXPECT_EQ(recovery.origin, (Origin{kA, {}}));
  EXPECT_TRUE(recovery.begins_lineage);
  EXPECT_EQ(recovery.lost, "steps 11 to 27 are lost; only ranks 0 have the log of lineage 1");
}

TEST(RecoveryTest, ARankThatLostEverythingIsNamed) {
  Disks disks(2);
  disks.Checkpoint(0, kA);
  disks.Log(0, 1, {}, 0, 1, 27);
  const auto recovery = disks.Plan(Served(1, 27));
  EXPECT_EQ(recovery.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(recovery.status().message()),
              AllOf(HasSubstr("rank 1 has none"), HasSubstr("rank 1 has no step log"),
                    HasSubstr("the log of rank 0 ends at step 27")));
}

TEST(RecoveryTest, ALineageThatOnlySomeRanksHaveBegunNeverWas) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  disks.LogEverywhere(1, {}, 0, 1, 25);
  disks.Log(0, 2, {kA, {}}, 10, 1, 0);
  RecoveryInput input = Served(1, 25);
  input.last_lineage = 2;
  for (const RecoveryInput& known : {input, RecoveryInput{}}) {
    const auto recovery = disks.Plan(known).value();
    EXPECT_EQ(recovery.lineage, 1u);
    EXPECT_EQ(recovery.origin, (Origin{kA, {{1, 25}}}));
  }
}

TEST(RecoveryTest, ALineageWithoutACheckpointIsMadeAgainFromWhereItBegan) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  disks.CheckpointEverywhere(kB);  // abandoned: lineage 2 left at step 12
  disks.LogEverywhere(1, {}, 0, 1, 25);
  disks.LogEverywhere(2, {kA, {{1, 25, 12}}}, 12, 1, 4);
  const auto recovery = disks.Plan(Served(2, 16)).value();
  EXPECT_EQ(recovery.origin, (Origin{kA, {{1, 25, 12}, {2, 4}}}));
  EXPECT_EQ(recovery.lineage, 2u);
  EXPECT_FALSE(recovery.begins_lineage);
  EXPECT_EQ(recovery.step, 16);
}

TEST(RecoveryTest, ALineageWithoutARecordGoesOnToo) {
  Disks disks(2);
  disks.LogEverywhere(1, {}, 0, 1, 0);
  const auto recovery = disks.Plan(Served(1, 0)).value();
  EXPECT_EQ(recovery.lineage, 1u);
  EXPECT_FALSE(recovery.begins_lineage);
  EXPECT_EQ(recovery.origin, (Origin{std::nullopt, {{1, 0}}})) << "the replay of nothing leads into it";
}

TEST(RecoveryTest, AnAbandonedHistoryIsNeverMixedIn) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  disks.CheckpointEverywhere(kB);
  disks.LogEverywhere(1, {}, 0, 1, 25);
  disks.Log(0, 2, {kA, {{1, 25, 12}}}, 12, 1, 9);  // rank 1 has lost its log of lineage 2
  const auto recovery = disks.Plan(Served(2, 21)).value();
  EXPECT_EQ(recovery.origin.checkpoint, kA)
      << "not the checkpoint of step 20, which lineage 2 has left behind";
  EXPECT_EQ(recovery.step, 12);
  EXPECT_EQ(recovery.lineage, 3u);
  EXPECT_THAT(recovery.lost, HasSubstr("steps 13 to 21 are lost"));
}

TEST(RecoveryTest, APolicyIsForTheFirstStartOnly) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  disks.LogEverywhere(1, {}, 0, 1, 25);
  RecoveryInput input;
  input.policy.kind = ResumePolicy::Kind::kNone;
  EXPECT_EQ(disks.Plan(input)->origin, Origin{});
  disks.Memory(1, {1, 25, 25});  // rank 0, with the coordinator, has been started again
  EXPECT_EQ(disks.Plan(input)->origin, (Origin{kA, {{1, 25}}}));
}

// ---------------------------------------------------------------- a step of the window

TEST(RecoveryTest, GoesBackToExactlyTheStepAskedFor) {
  Disks disks(2);
  disks.CheckpointEverywhere(kA);
  disks.CheckpointEverywhere(kB);
  disks.LogEverywhere(1, {}, 0, 11, 25);
  const auto to = [&disks](int64_t step) {
    RecoveryInput input = Served(1, 25);
    input.resume_step = step;
    return disks.Plan(input);
  };
  EXPECT_EQ(to(25)->origin, (Origin{kB, {{1, 25, 25}}}));
  EXPECT_EQ(to(20)->origin, (Origin{kB, {{1, 25, 20}}}));
  EXPECT_EQ(to(19)->origin, (Origin{kA, {{1, 25, 19}}}));
  EXPECT_EQ(to(10)->origin, (Origin{kA, {{1, 25, 10}}}));
  EXPECT_EQ(to(19)->lineage, 2u);
  EXPECT_TRUE(to(19)->begins_lineage);
  EXPECT_EQ(to(19)->step, 19);
  for (const int64_t step : {9, 26}) {
    EXPECT_EQ(to(step).status().code(), absl::StatusCode::kNotFound) << step;
    EXPECT_THAT(std::string(to(step).status().message()), HasSubstr("steps 10 to 25")) << step;
  }
}

TEST(RecoveryTest, GoesBackThroughLineages) {
  Disks disks(2);
  disks.LogEverywhere(1, {}, 0, 1, 25);
  disks.LogEverywhere(2, {std::nullopt, {{1, 25, 12}}}, 12, 1, 4);
  const auto to = [&disks](int64_t step) {
    RecoveryInput input = Served(2, 16);
    input.resume_step = step;
    return disks.Plan(input).value().origin;
  };
  EXPECT_EQ(to(14), (Origin{std::nullopt, {{1, 25, 12}, {2, 4, 14}}}));
  EXPECT_EQ(to(12), (Origin{std::nullopt, {{1, 25, 12}, {2, 4, 12}}}));
  EXPECT_EQ(to(3), (Origin{std::nullopt, {{1, 25, 3}}}));
}

}  // namespace
}  // namespace ccs
