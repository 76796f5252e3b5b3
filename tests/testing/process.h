// Child processes for tests and benchmarks that run the real binaries.
#ifndef CCS_TESTS_TESTING_PROCESS_H_
#define CCS_TESTS_TESTING_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ccs::testing {

// One child; killed with its destructor, and by the kernel should this process die first.
class Process {
 public:
  // Runs argv[0] with standard output and error appended to `log`, and `environment` (NAME=value) besides
  // this process's own.
  static absl::StatusOr<Process> Start(const std::vector<std::string>& argv, const std::filesystem::path& log,
                                       const std::vector<std::string>& environment = {});
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  void Signal(int signal) const;
  // The exit status, or 128 + the signal that ended it. DEADLINE_EXCEEDED if it is still running.
  absl::StatusOr<int> Wait(absl::Duration timeout);
  bool Running();
  // By SIGSTOP.
  bool Stopped() const;
  // The resident set now, and its peak so far.
  int64_t ResidentBytes() const { return StatusBytes("VmRSS:"); }
  int64_t PeakResidentBytes() const { return StatusBytes("VmHWM:"); }
  pid_t pid() const { return pid_; }

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  void Kill();
  // A field of /proc/PID/status.
  int64_t StatusBytes(const std::string& field) const;

  pid_t pid_ = -1;  // -1: none, or ended
  int exit_ = 0;
};

// A TCP port of the loopback interface that is free, and given to no other test while this process lives.
// Thread-safe.
int FreePort();
// FreePort may give it out again.
void ReturnPort(int port);

// The whole file, or an empty string.
std::string ReadFile(const std::filesystem::path& path);

// A fresh directory that is removed with this object.
class TempDir {
 public:
  // Below `parent`; empty: where temporary files go.
  explicit TempDir(const std::filesystem::path& parent = {});
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_PROCESS_H_
