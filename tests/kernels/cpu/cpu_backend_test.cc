// What only the CPU backend refuses, and its memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "kernels/cpu/layout.h"
#include "tests/kernels/refusals.h"

namespace ccs::kernels {
namespace {

TEST(CpuBackendTest, RefusesConfigurationsItCannotDo) {
  const auto refusal = [](auto change) {
    ShardConfig config = SmallConfig();
    change(config);
    return MakeCpuBackend(config).status();
  };
  ExpectInvalid(refusal([](auto& c) { c.precision = Precision::kBf16; }), "fp32 only");
  ExpectInvalid(refusal([](auto& c) { c.precision = Precision::kTf32; }), "fp32 only");
  ExpectInvalid(refusal([](auto& c) { c.dim = 0; }), "dim is 0");
  ExpectInvalid(refusal([](auto& c) { c.num_local = -1; }), "num_local is -1");
  ExpectInvalid(refusal([](auto& c) { c.threads = 0; }), "threads is 0");
  ExpectInvalid(refusal([](auto& c) { c.max_batch = 0; }), "max_batch is 0");
  EXPECT_TRUE(refusal([](auto& c) { c.precision = Precision::kFastest; }).ok());
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // their allocators end the process instead
TEST(CpuBackendTest, TooLargeAShardIsRefusedWithTheBytes) {
  ShardConfig config = SmallConfig();
  config.num_local = int64_t{1} << 40;
  config.dim = 1 << 16;
  ExpectRefused(MakeCpuBackend(config).status(), absl::StatusCode::kResourceExhausted,
                "576460752303423488 bytes");
}

TEST(CpuMemoryNeedTest, IsWhatTheBackendTakesFromTheSystem) {
  ShardConfig config;
  config.num_local = 20'000;
  config.dim = 100;
  config.max_batch = 600;
  config.num_shards = 3;
  config.kept_logits_bytes = 10'000'000;
  const MemoryNeed need = CpuMemoryNeed(config);
  const auto in_use = [] {
    const auto info = mallinfo2();
    return static_cast<double>(info.uordblks + info.hblkhd);
  };
  const double before = in_use();
  const auto backend = MakeCpuBackend(config).value();
  const auto total = static_cast<double>(need.state_bytes + need.workspace_bytes);
  EXPECT_NEAR(in_use() - before, total, 0.01 * total);
  EXPECT_EQ(backend->memory().state_bytes, need.state_bytes);
  EXPECT_EQ(backend->memory().workspace_bytes, need.workspace_bytes);
}
#endif

TEST(CpuMemoryNeedTest, StateIsEightBytesAValueAndTheWorkspaceForgetsTheClasses) {
  ShardConfig config;
  config.dim = 128;
  config.kept_logits_bytes = 1 << 20;
  config.num_local = 1'000'000;
  const MemoryNeed need = CpuMemoryNeed(config);
  EXPECT_EQ(need.state_bytes, int64_t{8} * 128 * 1'000'000);
  config.num_local *= 10;
  EXPECT_EQ(CpuMemoryNeed(config).workspace_bytes, need.workspace_bytes);
}

TEST(CpuMemoryNeedTest, KeepsNoMoreLogitsThanThereAre) {
  ShardConfig config = SmallConfig();
  const int64_t with_default = CpuMemoryNeed(config).workspace_bytes;
  config.kept_logits_bytes = 0;
  EXPECT_EQ(with_default - CpuMemoryNeed(config).workspace_bytes, int64_t{4} * 4 * kTileStride);
}

TEST(CpuBackendTest, NamesItsDevice) {
  EXPECT_THAT(MakeCpuBackend(SmallConfig()).value()->device_name(),
              ::testing::MatchesRegex("cpu, .+, oneDNN .+, 1 thread"));
}

}  // namespace
}  // namespace ccs::kernels
