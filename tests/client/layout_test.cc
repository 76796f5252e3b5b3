#include "client/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace ccs::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SplitRows, EveryHomeShardGetsOnePartAndTheRowsStayInOrder) {
  for (int trainers = 1; trainers <= 7; ++trainers) {
    for (int shards = 1; shards <= 7; ++shards) {
      std::set<int> homes;
      for (int trainer = 0; trainer < trainers; ++trainer) {
        for (const int64_t rows : {0, 1, 2, 5, 12, 257}) {
          SCOPED_TRACE(::testing::Message() << trainers << " trainers, " << shards << " shards, trainer "
                                            << trainer << ", " << rows << " rows");
          const std::vector<Part> parts = SplitRows(trainer, trainers, shards, rows);
          ASSERT_FALSE(parts.empty());
          int64_t next_row = 0;
          int last_shard = -1;
          for (const Part& part : parts) {
            EXPECT_EQ(part.first_row, next_row);
            EXPECT_GT(part.shard, last_shard);
            EXPECT_LT(part.shard, shards);
            EXPECT_LE(part.rows, parts[0].rows);
            EXPECT_GE(part.rows, parts[0].rows - 1);
            next_row += part.rows;
            last_shard = part.shard;
            homes.insert(part.shard);
          }
          EXPECT_EQ(next_row, rows);
        }
      }
      EXPECT_EQ(static_cast<int>(homes.size()), shards);
    }
  }
}

TEST(SplitRows, FollowsTheLayoutsRule) {
  const auto describe = [](const std::vector<Part>& parts) {
    std::vector<std::vector<int64_t>> result;
    for (const Part& part : parts) result.push_back({part.shard, part.first_row, part.rows});
    return result;
  };
  using Row = std::vector<int64_t>;
  // As many trainers as shards or more: trainer i at shard i mod N.
  EXPECT_THAT(describe(SplitRows(4, 5, 3, 9)), ElementsAre(Row{1, 0, 9}));
  EXPECT_THAT(describe(SplitRows(2, 3, 3, 9)), ElementsAre(Row{2, 0, 9}));
  // Fewer: shards k with k mod M = i, longer parts first.
  EXPECT_THAT(describe(SplitRows(0, 2, 5, 8)), ElementsAre(Row{0, 0, 3}, Row{2, 3, 3}, Row{4, 6, 2}));
  EXPECT_THAT(describe(SplitRows(1, 2, 5, 1)), ElementsAre(Row{1, 0, 1}, Row{3, 1, 0}));
  EXPECT_THAT(describe(SplitRows(0, 1, 3, 0)), ElementsAre(Row{0, 0, 0}, Row{1, 0, 0}, Row{2, 0, 0}));
}

std::vector<Shard> ShardsOf(const std::vector<int64_t>& sizes) {
  std::vector<Shard> shards;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    shards.push_back(
        {.rank = static_cast<int>(shards.size()), .address = "", .class_start = start, .num_classes = size});
    start += size;
  }
  return shards;
}

TEST(ValidateShards, AcceptsRangesThatCoverTheClassesAndRefusesOthers) {
  EXPECT_TRUE(ValidateShards(ShardsOf({4, 3, 3}), 10).ok());
  EXPECT_TRUE(ValidateShards(ShardsOf({1, 1, 0}), 2).ok());
  EXPECT_THAT(ValidateShards({}, 10).message(), HasSubstr("0 shards own 0 of 10 classes"));
  EXPECT_THAT(ValidateShards(ShardsOf({4, 3}), 10).message(), HasSubstr("own 7 of 10 classes"));
  auto overlapping = ShardsOf({4, 6});
  overlapping[1].class_start = 3;
  EXPECT_THAT(ValidateShards(overlapping, 10).message(), HasSubstr("classes from 3 where 4 comes next"));
  auto swapped = ShardsOf({4, 6});
  std::swap(swapped[0].rank, swapped[1].rank);
  EXPECT_EQ(ValidateShards(swapped, 10).code(), absl::StatusCode::kInternal);
}

TEST(GroupByOwner, EveryIdGoesToItsOwnerInPiecesOfBoundedSize) {
  const std::vector<std::vector<int64_t>> layouts = {{10}, {4, 3, 3}, {1, 1, 0, 0}, {0, 5, 0, 6}};
  for (const std::vector<int64_t>& sizes : layouts) {
    const std::vector<Shard> shards = ShardsOf(sizes);
    const int64_t num_classes = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 3 * num_classes; ++i) ids.push_back(i * 7 % num_classes);
    std::vector<int> seen(ids.size());
    for (const OwnedRows& piece : GroupByOwner(shards, ids, 2)) {
      ASSERT_LE(piece.rows.size(), 2u);
      ASSERT_GE(piece.rows.size(), 1u);
      const Shard& owner = shards[piece.shard];
      for (const int64_t row : piece.rows) {
        EXPECT_GE(ids[row], owner.class_start);
        EXPECT_LT(ids[row], owner.class_start + owner.num_classes);
        ++seen[row];
      }
    }
    EXPECT_THAT(seen, ::testing::Each(1));
  }
}

TEST(GroupByOwner, NoIdsAreNoPieces) { EXPECT_TRUE(GroupByOwner(ShardsOf({5, 5}), {}, 2).empty()); }

}  // namespace
}  // namespace ccs::client
