#include "server/engine/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ccs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LayoutTest, RangesCoverAllClassesInOrderAndDifferByAtMostOne) {
  for (const int64_t classes : {0, 1, 2, 7, 30, 101}) {
    for (const int shards : {1, 2, 3, 5, 8}) {
      int64_t next = 0;
      for (int rank = 0; rank < shards; ++rank) {
        const ClassRange range = ClassRangeOf(classes, shards, rank);
        EXPECT_EQ(range.start, next);
        EXPECT_GE(range.count, classes / shards);
        EXPECT_LE(range.count, classes / shards + 1);
        next += range.count;
      }
      EXPECT_EQ(next, classes);
    }
  }
}

TEST(LayoutTest, ARangeContainsItsClassesOnly) {
  const ClassRange range = ClassRangeOf(10, 3, 1);  // 4 + 3 + 3
  EXPECT_FALSE(range.contains(3));
  EXPECT_TRUE(range.contains(4));
  EXPECT_TRUE(range.contains(6));
  EXPECT_FALSE(range.contains(7));
  EXPECT_FALSE(range.contains(-1));
}

TEST(LayoutTest, WithMoreTrainersThanShardsEachHasOneHome) {
  EXPECT_THAT(TrainersAtHome(0, 2, 5), ElementsAre(0, 2, 4));
  EXPECT_THAT(TrainersAtHome(1, 2, 5), ElementsAre(1, 3));
}

TEST(LayoutTest, WithFewerTrainersThanShardsATrainerHasSeveralHomes) {
  EXPECT_THAT(TrainersAtHome(0, 5, 2), ElementsAre(0));
  EXPECT_THAT(TrainersAtHome(1, 5, 2), ElementsAre(1));
  EXPECT_THAT(TrainersAtHome(4, 5, 2), ElementsAre(0));
  EXPECT_TRUE(IsHome(3, 5, 1, 2));
  EXPECT_FALSE(IsHome(3, 5, 0, 2));
}

TEST(LayoutTest, WithoutARunNobodyIsAtHome) { EXPECT_THAT(TrainersAtHome(0, 2, 0), IsEmpty()); }

}  // namespace
}  // namespace ccs
