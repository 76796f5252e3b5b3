// What the client tests start from.
#ifndef CCS_TESTS_CLIENT_CONNECTED_H_
#define CCS_TESTS_CLIENT_CONNECTED_H_

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "ccs/client/client.h"
#include "tests/client/fake_cluster.h"

namespace ccs::client {

// Long enough never to matter in a test that should pass.
inline constexpr absl::Duration kAmple = absl::Seconds(60);

inline std::unique_ptr<Client> ConnectTo(const FakeCluster& cluster, absl::Duration timeout = kAmple) {
  auto client = Client::Connect({.addresses = {cluster.address(0)}, .timeout = timeout});
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

inline std::unique_ptr<Run> Open(Client& client, const RunOptions& options = {}) {
  auto run = client.OpenRun(options);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *std::move(run) : nullptr;
}

// 1, 2, 3, ...
inline std::vector<float> Ramp(size_t size) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

}  // namespace ccs::client

#endif  // CCS_TESTS_CLIENT_CONNECTED_H_
