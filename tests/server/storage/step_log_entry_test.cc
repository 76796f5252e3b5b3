#include "server/storage/step_log_entry.h"

#include <gtest/gtest.h>

namespace ccs {
namespace {

TEST(StepLogEntryTest, KeysSortByLineageThenIndexAndCanBeReadBack) {
  EXPECT_EQ(LogRecordKey(0x0102, 3), std::string("r\0\0\0\0\0\0\1\2\0\0\0\0\0\0\0\3", 17));
  EXPECT_LT(LogRecordKey(1, kMaxLogIndex), LogRecordKey(2, 1));
  EXPECT_LT(LogRecordKey(1, 255), LogRecordKey(1, 256));
  EXPECT_LT(LogBeginKey(~uint64_t{0}), LogRecordKey(0, 0));
  EXPECT_LT(LogPayloadKey(255), LogPayloadKey(256));
  EXPECT_EQ(ParseLogKey(LogRecordKey(~uint64_t{1}, 1000))->lineage, ~uint64_t{1});
  EXPECT_EQ(ParseLogKey(LogRecordKey(~uint64_t{1}, 1000))->index, 1000);
  EXPECT_EQ(ParseLogKey(LogBeginKey(500))->lineage, 500);
  EXPECT_EQ(ParseLogKey(LogBeginKey(500))->index, 0);
  for (const std::string key : {"", "v", "w", "b1234567", "r12345678", "x1234567812345678"}) {
    EXPECT_FALSE(ParseLogKey(key).has_value()) << key;
  }
}

TEST(StepLogEntryTest, ValuesCanBeReadBack) {
  const LogBeginEntry begin = {.step = -1, .first = 12, .begin = std::string("a\0b", 3)};
  EXPECT_EQ(*DecodeLogBegin("key", EncodeLogEntry("key", begin)), begin);
  const LogRecordEntry record = {.step = 5, .payload = 77, .bytes = 1 << 20, .digest = std::string(32, 'd')};
  EXPECT_EQ(*DecodeLogRecord("key", EncodeLogEntry("key", record)), record);
  EXPECT_EQ(DecodeLogNumber("key", EncodeLogNumber("key", 99)), 99);
}

TEST(StepLogEntryTest, AnyOtherByteOrKeyOrLengthIsNoticed) {
  const std::string value = EncodeLogEntry("key", LogRecordEntry{5, 6, 7, std::string(32, 'd')});
  for (size_t i = 0; i < value.size(); ++i) {
    std::string other = value;
    other[i] ^= 1;
    EXPECT_FALSE(DecodeLogRecord("key", other).has_value()) << i;
    EXPECT_FALSE(DecodeLogRecord("key", value.substr(0, i)).has_value()) << i;
  }
  EXPECT_FALSE(DecodeLogRecord("kez", value).has_value());
  EXPECT_FALSE(DecodeLogRecord("key", value + "1").has_value());
}

}  // namespace
}  // namespace ccs
