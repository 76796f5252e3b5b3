// Hosts of a network of their own, for tests of partitions.
#ifndef CCS_TESTS_TESTING_NETWORK_NAMESPACES_H_
#define CCS_TESTS_TESTING_NETWORK_NAMESPACES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ccs::testing {

// Network namespaces on one bridge, to which this process's own namespace belongs too. Removed with this
// object. Needs root and iproute2.
class NetworkNamespaces {
 public:
  // PERMISSION_DENIED or the like, with what `ip` said, where that is not possible.
  static absl::StatusOr<std::unique_ptr<NetworkNamespaces>> Make(int hosts);
  ~NetworkNamespaces();
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  std::string address(int host) const;
  // Runs the words after it on the host, as the same process.
  std::vector<std::string> launcher(int host) const;
  // What one host sends to another is dropped without a word. This process still reaches all.
  absl::Status Partition(bool parted);

 private:
  NetworkNamespaces(int hosts, int network) : hosts_(hosts), network_(network) {}
  absl::Status SetUp();
  std::string name(int host) const;
  std::string bridge() const;

  const int hosts_;
  const int network_;  // a number of its own among this machine's
};

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_NETWORK_NAMESPACES_H_
