// Choosing and refusing configurations.
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "kernels/checks.h"
#include "kernels/cpu/cpu_backend.h"

namespace ccs::kernels {
namespace {

absl::Status CheckConfig(const ShardConfig& config) {
  if (config.precision != Precision::kFp32 && config.precision != Precision::kFastest) {
    return absl::InvalidArgumentError("the CPU computes in fp32 only; tf32 and bf16 need a GPU");
  }
  return CheckSizes(config);
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
