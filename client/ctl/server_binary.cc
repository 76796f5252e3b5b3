#include "client/ctl/server_binary.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ccs::client {

absl::Status BecomeServer(char** argv) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (self.parent_path() / "ccs-server").string();
  std::string name = "ccs-server";
  argv[0] = name.data();
  execv(beside.c_str(), argv);
  if (errno == ENOENT) execvp(argv[0], argv);
  if (errno != ENOENT) return absl::ErrnoToStatus(errno, "cannot run ccs-server");
  return absl::NotFoundError(absl::StrCat("this is done by ccs-server, which is neither at ", beside,
                                          " nor on PATH: install the server here, or run it where it is"));
}

}  // namespace ccs::client
