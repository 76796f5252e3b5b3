#include "server/memory_admission.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The number after `key` on a line of its own ("MemAvailable:   123 kB", "inactive_file 123").
std::optional<int64_t> ReadKey(const fs::path& file, absl::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

// Nothing for a file that is not there or says "max".
std::optional<int64_t> ReadNumber(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  int64_t value = 0;
  if (stream >> word && absl::SimpleAtoi(word, &value)) return value;
  return std::nullopt;
}

// How the two versions of control groups call the same things.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* cache;  // key of memory.stat
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

// What the limits of `group` and its ancestors, under the mount point, leave.
int64_t LeftInGroup(const fs::path& mount, fs::path group, const GroupFiles& files) {
  int64_t left = kUnlimited;
  while (true) {
    const fs::path folder = mount / group;
    const std::optional<int64_t> limit = ReadNumber(folder / files.limit);
    if (limit) {
      const int64_t used = ReadNumber(folder / files.usage).value_or(0) -
                           ReadKey(folder / "memory.stat", files.cache).value_or(0);
      left = std::min(left, std::max<int64_t>(*limit - std::max<int64_t>(used, 0), 0));
    }
    if (group.empty()) return left;
    group = group.parent_path();
  }
}

int64_t LeftInControlGroups(const fs::path& root) {
  int64_t left = kUnlimited;
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {  // "ID:CONTROLLERS:/PATH"; no controllers: version 2
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const fs::path group = fs::path(fields[2]).relative_path();
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (fields[1].empty()) {
      left = std::min(left, LeftInGroup(root / "sys/fs/cgroup", group, kVersion2));
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      left = std::min(left, LeftInGroup(root / "sys/fs/cgroup/memory", group, kVersion1));
    }
  }
  return left;
}

std::string Mebibytes(int64_t bytes) { return absl::StrCat(bytes, " bytes (", bytes >> 20, " MiB)"); }

}  // namespace

int64_t AvailableMemory(const fs::path& root) {
  const std::optional<int64_t> kibibytes = ReadKey(root / "proc/meminfo", "MemAvailable:");
  const int64_t machine = kibibytes ? *kibibytes * 1024 : kUnlimited;
  return std::min(machine, LeftInControlGroups(root));
}

absl::Status AdmitMemory(const kernels::MemoryNeed& need, int64_t available, int64_t limit) {
  const int64_t bytes = need.state_bytes + need.workspace_bytes;
  const std::string needed =
      absl::StrCat("this shard needs ", Mebibytes(bytes), ": ", need.state_bytes,
                   " for weights and momentum, ", need.workspace_bytes, " for the workspace");
  if (limit > 0 && bytes > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(needed, "; --memory_limit_bytes allows ", Mebibytes(limit)));
  }
  if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat(needed, "; this machine or control group has ",
                                                     Mebibytes(available),
                                                     " left. More shards need less each"));
  }
  return absl::OkStatus();
}

}  // namespace ccs
