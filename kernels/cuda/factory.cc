#include "kernels/cuda/factory.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/checks.h"
#include "kernels/cuda/cuda_backend.h"

namespace ccs::kernels {
namespace {

constexpr int kOldestMajor = 8;  // bfloat16 and TF32 in the matrix units

absl::StatusOr<cudaDeviceProp> PropertiesOf(int device) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("no GPU can be used: ", cudaGetErrorString(error)));
  }
  if (device < 0 || device >= count) {
    return absl::UnavailableError(absl::StrCat("there is no cuda:", device, "; this machine has ", count));
  }
  cudaDeviceProp properties;
  absl::Status status = cuda::ToStatus(cudaGetDeviceProperties(&properties, device), "describe itself");
  if (!status.ok()) return status;
  return properties;
}

std::string NameOf(int device, const cudaDeviceProp& properties) {
  return absl::StrCat("cuda:", device, ", ", properties.name);
}

MemoryNeed NeedOf(const ShardConfig& config, const cudaDeviceProp& properties) {
  cuda::Memory state(cuda::MemoryKind::kCounted);
  cuda::Memory workspace(cuda::MemoryKind::kCounted);
  cuda::Memory pinned(cuda::MemoryKind::kCounted);
  const cuda::Layout layout(config, cuda::TileColumns(config, properties.l2CacheSize), &state, &workspace,
                            &pinned);
  return {state.bytes(), workspace.bytes()};
}

absl::Status CheckFree(const MemoryNeed& need, const std::string& name) {
  size_t free = 0;
  size_t total = 0;
  absl::Status status = cuda::ToStatus(cudaMemGetInfo(&free, &total), "tell its free memory");
  if (!status.ok()) return status;
  const int64_t needed = need.state_bytes + need.workspace_bytes;
  if (needed <= static_cast<int64_t>(free)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(name, " has ", free, " bytes free; this shard needs ",
                                                   needed, " (", need.state_bytes, " of state and ",
                                                   need.workspace_bytes, " of workspace)"));
}

}  // namespace

absl::StatusOr<MemoryNeed> CudaMemoryNeed(const ShardConfig& config, int device) {
  if (absl::Status status = CheckSizes(config); !status.ok()) return status;
  const absl::StatusOr<cudaDeviceProp> properties = PropertiesOf(device);
  if (!properties.ok()) return properties.status();
  return NeedOf(config, *properties);
}

absl::StatusOr<std::unique_ptr<ShardBackend>> MakeCudaBackend(const ShardConfig& config, int device) {
  if (absl::Status status = CheckSizes(config); !status.ok()) return status;
  const absl::StatusOr<cudaDeviceProp> properties = PropertiesOf(device);
  if (!properties.ok()) return properties.status();
  const std::string name = NameOf(device, *properties);
  if (properties->major < kOldestMajor) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has compute capability ", properties->major,
                                                      ".", properties->minor, "; at least ", kOldestMajor,
                                                      ".0 is needed"));
  }
  if (absl::Status status = cuda::ToStatus(cudaSetDevice(device), "take a thread"); !status.ok())
    return status;
  if (absl::Status status = CheckFree(NeedOf(config, *properties), name); !status.ok()) return status;
  return cuda::CudaBackend::Make(config,
                                 {.index = device, .name = name, .l2_bytes = properties->l2CacheSize});
}

}  // namespace ccs::kernels
