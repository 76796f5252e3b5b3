// The library as it is linked, on whatever machine this is.
#include <gtest/gtest.h>

#include "kernels/cuda/factory.h"

namespace ccs::kernels {
namespace {

TEST(CudaDeviceTest, ADeviceThatIsNotThereIsRefusedOnAnyMachine) {
  ShardConfig config;
  config.num_local = 10;
  config.dim = 8;
  const absl::Status status = MakeCudaBackend(config, 999).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(CudaMemoryNeed(config, 999).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ccs::kernels
