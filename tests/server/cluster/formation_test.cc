#include "server/cluster/formation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/cluster/checkpoint_catalogue.h"
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
