#include "server/cluster/formation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/cluster/messages.h"

namespace ccs {
namespace {

const CheckpointId kA{1, 10, 5};
const CheckpointId kB{1, 20, 3};
const CheckpointId kB2{1, 20, 4};
const CheckpointId kC{2, 15, 1};

CheckpointCatalogue Catalogue(const std::vector<std::vector<CheckpointId>>& ranks) {
  CheckpointCatalogue catalogue(static_cast<int>(ranks.size()), 3);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    google::protobuf::RepeatedPtrField<v1::CheckpointInfo> infos;
    for (const CheckpointId& id : ranks[rank]) *infos.Add()->mutable_id() = CheckpointIdToProto(id);
    catalogue.SetRank(static_cast<int>(rank), infos);
  }
  return catalogue;
}

struct FirstCase {
  ResumePolicy policy;
  std::vector<std::vector<CheckpointId>> ranks;
  absl::StatusCode code;
  std::optional<CheckpointId> chosen;
};

TEST(FormationTest, ChoosesWhereAFreshClusterBegins) {
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
      {latest, {{kA}, {kB}, {kC}}, StatusCode::kFailedPrecondition, {}},
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
    const auto chosen = ChooseFirst(cases[i].policy, Catalogue(cases[i].ranks));
    EXPECT_EQ(chosen.status().code(), cases[i].code) << chosen.status();
    if (chosen.ok()) {
      EXPECT_EQ(*chosen, cases[i].chosen);
    }
  }
}

TEST(FormationTest, ChoosesWhereABrokenClusterGoesOn) {
  EXPECT_EQ(ChooseAgain(1, std::nullopt, Catalogue({{kA, kB, kC}, {kA, kB, kC}})), kB) << "its own newest";
  EXPECT_EQ(ChooseAgain(1, std::nullopt, Catalogue({{kA, kB}, {kA}})), kA) << "whole on every rank";
  EXPECT_EQ(ChooseAgain(3, kA, Catalogue({{kA, kB, kC}, {kA, kB, kC}})), kA) << "where it began";
  EXPECT_EQ(ChooseAgain(2, kA, Catalogue({{kA, kC}, {kA, kC}})), kC) << "its own before where it began";
  EXPECT_EQ(ChooseAgain(3, kA, Catalogue({{kA, kB}, {kB}})), std::nullopt);
  EXPECT_EQ(ChooseAgain(3, std::nullopt, Catalogue({{kA, kB}, {kA, kB}})), std::nullopt)
      << "checkpoints of a history that --resume=none has left are not gone back to";
}

TEST(CheckpointCatalogueTest, PrunesEachRankAtOrBelowTheCommittedOne) {
  CheckpointCatalogue catalogue = Catalogue({{kA, kB, kB2, kC}, {kA, kB2, kC}});
  CheckpointCatalogue two(2, 2);
  for (int rank = 0; rank < 2; ++rank) {
    for (const v1::CheckpointInfo& info : catalogue.Common()) two.Written(rank, info);
  }
  v1::CheckpointInfo only_here;
  *only_here.mutable_id() = CheckpointIdToProto(kB);
  two.Written(0, only_here);
  two.Committed(kB2);  // rank 0 keeps kB and kB2, rank 1 kA and kB2; kC is newer
  EXPECT_FALSE(two.FindCommon(kA));
  EXPECT_FALSE(two.FindCommon(kB));
  EXPECT_TRUE(two.FindCommon(kB2));
  EXPECT_TRUE(two.FindCommon(kC));
  EXPECT_EQ(two.max_lineage(), 2u);
}

}  // namespace
}  // namespace ccs
