#include "server/storage/row_block.h"

#include <gtest/gtest.h>

namespace ccs {
namespace {

TEST(RowBlockTest, ABlockIsFourKibibytesAndAtLeastARow) {
  EXPECT_EQ(RowsPerBlock(128), 4);
  EXPECT_EQ(RowsPerBlock(512), 1);
  EXPECT_EQ(RowsPerBlock(1), 512);
  EXPECT_EQ(RowsPerBlock(1 << 20), 1);
}

// Other shard counts find a class under the same key.
TEST(RowBlockTest, BlocksAreAlignedToGlobalClassIdsAndCutToTheShard) {
  const auto expect = [](int64_t class_id, int64_t key_class, int64_t first_class, int64_t num_rows) {
    const RowBlock block = BlockOf(class_id, 256, 300, 500);  // classes [300, 800)
    EXPECT_EQ(block.key_class, key_class) << class_id;
    EXPECT_EQ(block.first_class, first_class) << class_id;
    EXPECT_EQ(block.num_rows, num_rows) << class_id;
  };
  expect(300, 256, 300, 212);
  expect(511, 256, 300, 212);
  expect(512, 512, 512, 256);
  expect(799, 768, 768, 32);
}

TEST(RowBlockTest, KeysSortLikeClasses) {
  EXPECT_EQ(RowsKey({.key_class = 0x0102}), std::string("r\0\0\0\0\0\0\1\2", 9));
  EXPECT_LT(RowsKey({.key_class = 255}), RowsKey({.key_class = 256}));
  EXPECT_LT(RecordKey("zzz"), RowsKey({.key_class = 0}));
}

TEST(RowBlockTest, ThePrefixNamesTheRows) {
  EXPECT_EQ(RowsPrefix({.key_class = 0, .first_class = 3, .num_rows = 258}),
            std::string("\3\0\0\0\0\0\0\0\2\1\0\0\0\0\0\0", kRowsPrefixBytes));
}

}  // namespace
}  // namespace ccs
