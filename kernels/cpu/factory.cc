// Choosing and refusing configurations.
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"

namespace ccs::kernels {
namespace {

// Far beyond any machine, and small enough that no count of bytes overflows.
constexpr int64_t kMaxRows = int64_t{1} << 40;
constexpr int64_t kMaxDim = 1 << 16;
constexpr int64_t kMaxBatch = 1 << 20;
constexpr int64_t kMaxShards = 1 << 16;
constexpr int64_t kMaxThreads = 1024;

absl::Status CheckWithin(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, "; it must be in [", least, ", ", most, "]"));
}

absl::Status CheckConfig(const ShardConfig& config) {
  if (config.precision != Precision::kFp32 && config.precision != Precision::kFastest) {
    return absl::InvalidArgumentError("the CPU computes in fp32 only; tf32 and bf16 need a GPU");
  }
  for (const absl::Status& status : {
           CheckWithin("num_local", config.num_local, 0, kMaxRows),
           CheckWithin("class_start", config.class_start, 0, INT64_MAX - kMaxRows),
           CheckWithin("dim", config.dim, 1, kMaxDim),
           CheckWithin("num_shards", config.num_shards, 1, kMaxShards),
           CheckWithin("max_batch", config.max_batch, 1, kMaxBatch),
           CheckWithin("threads", config.threads, 1, kMaxThreads),
           CheckWithin("kept_logits_bytes", config.kept_logits_bytes, 0, INT64_MAX),
       }) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

MemoryNeed CpuMemoryNeed(const ShardConfig& config) {
  if (!CheckConfig(config).ok()) return {};
  Arena state(Arena::Mode::kCount);
  Arena workspace(Arena::Mode::kCount);
  const Layout layout(config, &state, &workspace);
  return {state.bytes(), workspace.bytes()};
}

absl::StatusOr<std::unique_ptr<ShardBackend>> MakeCpuBackend(const ShardConfig& config) {
  if (absl::Status status = CheckConfig(config); !status.ok()) return status;
  try {
    return std::make_unique<CpuBackend>(config);
  } catch (const std::bad_alloc&) {
    const MemoryNeed need = CpuMemoryNeed(config);
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", need.state_bytes,
                                                     " bytes of state and ", need.workspace_bytes,
                                                     " bytes of workspace"));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", config.threads, " threads: ", error.what()));
  }
}

}  // namespace ccs::kernels
