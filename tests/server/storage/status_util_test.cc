#include "server/storage/status_util.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace ccs {
namespace {

using ::testing::HasSubstr;

TEST(StatusUtilTest, TranslatesErrno) {
  EXPECT_TRUE(absl::IsResourceExhausted(ErrnoToStatus(ENOSPC, "write", "f")));
  EXPECT_TRUE(absl::IsResourceExhausted(ErrnoToStatus(EDQUOT, "write", "f")));
  EXPECT_TRUE(absl::IsNotFound(ErrnoToStatus(ENOENT, "open", "f")));
  const absl::Status other = ErrnoToStatus(EACCES, "open", "/data/f");
  EXPECT_TRUE(absl::IsInternal(other));
  EXPECT_THAT(std::string(other.message()), HasSubstr("cannot open /data/f: "));
}

TEST(StatusUtilTest, TranslatesRocksDbStatuses) {
  EXPECT_TRUE(RocksToStatus(rocksdb::Status::OK(), "d").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(RocksToStatus(rocksdb::Status::NoSpace("x"), "d")));
  EXPECT_TRUE(absl::IsNotFound(RocksToStatus(rocksdb::Status::NotFound(), "d")));
  EXPECT_TRUE(absl::IsDataLoss(RocksToStatus(rocksdb::Status::Corruption("block checksum"), "d")));
  const absl::Status other = RocksToStatus(rocksdb::Status::IOError("broken"), "/data");
  EXPECT_TRUE(absl::IsInternal(other));
  EXPECT_THAT(std::string(other.message()), HasSubstr("/data"));
}

}  // namespace
}  // namespace ccs
