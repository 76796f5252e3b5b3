#include "client/ctl/table.h"

#include <gtest/gtest.h>

namespace ccs::client {
namespace {

TEST(Table, ColumnsAreAsWideAsTheirLongestCellAndNumbersAreToTheRight) {
  Table table({"RANK", "NAME", "STEP"});
  table.AddRow({"0", "a-long-name:8001", "5"});
  table.AddRow({"11", "b", "12345"});
  EXPECT_EQ(table.ToString(),
            "RANK  NAME               STEP\n"
            "   0  a-long-name:8001      5\n"
            "  11  b                 12345\n");
}

TEST(Table, WithoutRowsIsItsHeader) { EXPECT_EQ(Table({"A", "BC"}).ToString(), "A  BC\n"); }

TEST(HumanBytes, KeepsOneDigitOfTheLargestUnit) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(HumanBytes(int64_t{1} << 62), "4096.0 PiB");
}

TEST(UtcTime, IsReadable) { EXPECT_EQ(UtcTime(86400.5), "1970-01-02 00:00:00Z"); }

}  // namespace
}  // namespace ccs::client
