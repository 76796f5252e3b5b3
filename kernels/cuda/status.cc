#include "kernels/cuda/status.h"

#include "absl/strings/str_cat.h"

namespace ccs::kernels::cuda {
namespace {

absl::Status Failed(bool for_memory, absl::string_view what, absl::string_view why) {
  const std::string message = absl::StrCat("the GPU failed to ", what, ": ", why);
  return for_memory ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

}  // namespace

absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return Failed(error == cudaErrorMemoryAllocation, what, cudaGetErrorString(error));
}

absl::Status ToStatus(cublasStatus_t error, absl::string_view what) {
  if (error == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return Failed(error == CUBLAS_STATUS_ALLOC_FAILED, what, cublasGetStatusString(error));
}

}  // namespace ccs::kernels::cuda
