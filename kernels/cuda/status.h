// Errors of CUDA and cuBLAS as statuses.
#ifndef CCS_KERNELS_CUDA_STATUS_H_
#define CCS_KERNELS_CUDA_STATUS_H_

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ccs::kernels::cuda {

// RESOURCE_EXHAUSTED for memory, else INTERNAL; `what` was tried.
absl::Status ToStatus(cudaError_t error, absl::string_view what);
absl::Status ToStatus(cublasStatus_t error, absl::string_view what);

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_STATUS_H_
