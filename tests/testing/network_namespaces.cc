#include "tests/testing/network_namespaces.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/process.h"

namespace ccs::testing {
namespace {

constexpr char kIp[] = "/bin/ip";

absl::Status Ip(const std::string& command) {
  const TempDir directory;
  std::vector<std::string> argv = {kIp};
  for (const auto word : absl::StrSplit(command, ' ')) argv.emplace_back(word);
  auto process = Process::Start(argv, directory.path() / "ip.log");
  if (!process.ok()) return process.status();
  const auto exit = process->Wait(absl::Seconds(10));
  if (!exit.ok()) return exit.status();
  if (*exit == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("ip ", command, ": ",
                   *exit == 127 ? "there is no such program" : ReadFile(directory.path() / "ip.log")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NetworkNamespaces>> NetworkNamespaces::Make(int hosts) {
  // A /24 of the networks that are set aside for benchmarks.
  auto made = std::unique_ptr<NetworkNamespaces>(new NetworkNamespaces(hosts, getpid() % 250));
  if (absl::Status status = made->SetUp(); !status.ok()) return status;
  return made;
}

absl::Status NetworkNamespaces::SetUp() {
  std::vector<std::string> commands = {
      absl::StrCat("link add ", bridge(), " type bridge"),
      absl::StrCat("addr add 198.18.", network_, ".254/24 dev ", bridge()),
      absl::StrCat("link set ", bridge(), " up"),
  };
  for (int host = 0; host < hosts_; ++host) {
    const std::string inside = absl::StrCat("-n ", name(host), " ");
    commands.push_back(absl::StrCat("netns add ", name(host)));
    commands.push_back(absl::StrCat("link add ", name(host), " type veth peer name eth0 netns ", name(host)));
    commands.push_back(absl::StrCat("link set ", name(host), " master ", bridge(), " up"));
    commands.push_back(absl::StrCat(inside, "addr add ", address(host), "/24 dev eth0"));
    commands.push_back(absl::StrCat(inside, "link set eth0 up"));
    commands.push_back(absl::StrCat(inside, "link set lo up"));
  }
  for (const std::string& command : commands) {
    if (absl::Status status = Ip(command); !status.ok()) return status;
  }
  return absl::OkStatus();
}

NetworkNamespaces::~NetworkNamespaces() {
  for (int host = 0; host < hosts_; ++host) {
    (void)Ip(absl::StrCat("link del ", name(host)));
    (void)Ip(absl::StrCat("netns del ", name(host)));
  }
  (void)Ip(absl::StrCat("link del ", bridge()));
}

absl::Status NetworkNamespaces::Partition(bool parted) {
  absl::Status status;
  for (int host = 0; host < hosts_; ++host) {
    // Isolated ports of a bridge do not reach one another.
    status.Update(
        Ip(absl::StrCat("link set ", name(host), " type bridge_slave isolated ", parted ? "on" : "off")));
  }
  return status;
}

std::string NetworkNamespaces::address(int host) const {
  return absl::StrCat("198.18.", network_, ".", host + 1);
}

std::vector<std::string> NetworkNamespaces::launcher(int host) const {
  return {kIp, "netns", "exec", name(host)};
}

std::string NetworkNamespaces::name(int host) const { return absl::StrCat("ccs", network_, "-", host); }

std::string NetworkNamespaces::bridge() const { return absl::StrCat("ccs", network_, "-br"); }

}  // namespace ccs::testing
