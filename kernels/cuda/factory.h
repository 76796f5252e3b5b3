// The way in: a shard on a GPU.
#ifndef CCS_KERNELS_CUDA_FACTORY_H_
#define CCS_KERNELS_CUDA_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/shard_backend.h"

namespace ccs::kernels {

// Bytes of device memory that a backend with this configuration will hold on device number `device`, without
// allocating. INVALID_ARGUMENT for a configuration out of bounds, UNAVAILABLE if there is no such device.
absl::StatusOr<MemoryNeed> CudaMemoryNeed(const ShardConfig& config, int device);

// INVALID_ARGUMENT for a configuration out of bounds; UNAVAILABLE for a device that is missing,
// FAILED_PRECONDITION for one older than compute capability 8.0, RESOURCE_EXHAUSTED for one with too little
// free memory (its name, the free bytes and those needed are in the message), all before anything is
// allocated.
absl::StatusOr<std::unique_ptr<ShardBackend>> MakeCudaBackend(const ShardConfig& config, int device);

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CUDA_FACTORY_H_
