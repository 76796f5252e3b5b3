#include "server/memory_admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>

namespace ccs {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A machine made of files.
class MemoryAdmissionTest : public ::testing::Test {
 protected:
  MemoryAdmissionTest()
      : root_(fs::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(root_);
  }
  ~MemoryAdmissionTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& content) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << content;
  }

  const fs::path root_;
};

TEST_F(MemoryAdmissionTest, TheMachinesAvailableMemoryCountsWhenNothingElseLimits) {
  Write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    600 kB\n");
  EXPECT_EQ(AvailableMemory(root_), 600 * 1024);
}

TEST_F(MemoryAdmissionTest, NothingKnownIsNoLimit) {
  EXPECT_EQ(AvailableMemory(root_), std::numeric_limits<int64_t>::max());
}

TEST_F(MemoryAdmissionTest, Version2GroupLeavesItsLimitLessWhatIsUsedAndNotCache) {
  Write("proc/meminfo", "MemAvailable: 1000000 kB\n");
  Write("proc/self/cgroup", "0::/pod/box\n");
  Write("sys/fs/cgroup/pod/box/memory.max", "5000\n");
  Write("sys/fs/cgroup/pod/box/memory.current", "3000\n");
  Write("sys/fs/cgroup/pod/box/memory.stat", "anon 100\ninactive_file 800\nactive_file 7\n");
  EXPECT_EQ(AvailableMemory(root_), 2800);
}

TEST_F(MemoryAdmissionTest, AnAncestorWithLessLeftDecides) {
  Write("proc/self/cgroup", "0::/pod/box\n");
  Write("sys/fs/cgroup/pod/box/memory.max", "max\n");
  Write("sys/fs/cgroup/pod/memory.max", "4000\n");
  Write("sys/fs/cgroup/pod/memory.current", "3500\n");
  EXPECT_EQ(AvailableMemory(root_), 500);
}

TEST_F(MemoryAdmissionTest, Version1GroupIsReadFromItsMemoryController) {
  Write("proc/self/cgroup", "7:cpu:/other\n4:hugetlb,memory:/box\n");
  Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9000\n");
  Write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "4000\n");
  Write("sys/fs/cgroup/memory/box/memory.stat", "total_inactive_file 1000\n");
  EXPECT_EQ(AvailableMemory(root_), 6000);
}

TEST_F(MemoryAdmissionTest, AGroupOverItsLimitLeavesNothing) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/memory.max", "100\n");
  Write("sys/fs/cgroup/memory.current", "300\n");
  EXPECT_EQ(AvailableMemory(root_), 0);
}

TEST_F(MemoryAdmissionTest, AdmitsWhatJustFits) {
  EXPECT_TRUE(AdmitMemory({.state_bytes = 600, .workspace_bytes = 400}, 1000, 0).ok());
  EXPECT_TRUE(AdmitMemory({.state_bytes = 600, .workspace_bytes = 400}, 1000, 1000).ok());
}

TEST_F(MemoryAdmissionTest, RefusesWithBothNumbers) {
  const absl::Status machine = AdmitMemory({.state_bytes = 601, .workspace_bytes = 400}, 1000, 0);
  EXPECT_EQ(machine.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(machine.message()), HasSubstr("needs 1001 bytes"));
  EXPECT_THAT(std::string(machine.message()), HasSubstr("has 1000 bytes"));
  const absl::Status limit = AdmitMemory({.state_bytes = 601, .workspace_bytes = 400}, 5000, 1000);
  EXPECT_EQ(limit.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(limit.message()), HasSubstr("needs 1001 bytes"));
  EXPECT_THAT(std::string(limit.message()), HasSubstr("--memory_limit_bytes allows 1000 bytes"));
}

}  // namespace
}  // namespace ccs
