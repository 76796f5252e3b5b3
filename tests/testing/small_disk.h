// A disk that can be full.
#ifndef CCS_TESTS_TESTING_SMALL_DISK_H_
#define CCS_TESTS_TESTING_SMALL_DISK_H_

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ccs::testing {

// Mounted in memory for as long as this lives, where the right to mount is there.
class SmallDisk {
 public:
  // `size` as mount understands it, e.g. "1m". Creates the directory.
  SmallDisk(const std::filesystem::path& directory, const std::string& size) : directory_(directory) {
    std::filesystem::create_directories(directory);
    if (mount("tmpfs", directory.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0) {
      why_not_ = std::string("needs the right to mount a small disk: ") + std::strerror(errno);
    }
  }
  ~SmallDisk() {
    if (why_not_.empty()) umount2(directory_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Empty if it is there.
  const std::string& why_not() const { return why_not_; }

  // Takes all the room that is left now.
  void Fill() {
    std::ofstream file(ballast(), std::ios::binary | std::ios::app);
    const std::vector<char> page(4096);
    while (file.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
  }
  void MakeRoom() { std::filesystem::remove(ballast()); }

 private:
  std::filesystem::path ballast() const { return directory_ / "ballast"; }

  const std::filesystem::path directory_;
  std::string why_not_;
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_SMALL_DISK_H_
