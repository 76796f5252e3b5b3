#include <bit>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cublas_v2.h"
#include "cuda_bf16.h"
#include "kernels/cpu/product.h"
#include "tests/kernels/cuda/emulation/device.h"

struct EmulatedCublas {
  cudaStream_t stream = nullptr;
  bool has_workspace = false;
};

namespace {

using ccs::emulation::FailsNow;

// A factor by columns as floats, with what its type and the kind of computation leave of it.
struct Floats {
  Floats(const void* data, cudaDataType_t type, cublasComputeType_t compute, int columns, int rows,
         int stride)
      : values(columns > 0 ? static_cast<size_t>(columns - 1) * stride + rows : 0) {
    for (int column = 0; column < columns; ++column) {
      for (int row = 0; row < rows; ++row) {
        const size_t at = static_cast<size_t>(column) * stride + row;
        float value = type == CUDA_R_16BF ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at])
                                          : static_cast<const float*>(data)[at];
        // TF32 keeps ten bits of the fraction.
        if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
          value = std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000u) & ~0x1fffu);
        }
        values[at] = value;
      }
    }
  }
  std::vector<float> values;
};

}  // namespace

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "execution failed";
}

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  if (FailsNow()) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = new EmulatedCublas;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->has_workspace = false;  // as there
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes) {
  if (!ccs::emulation::IsDeviceMemory(workspace, bytes)) return CUBLAS_STATUS_EXECUTION_FAILED;
  handle->has_workspace = true;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                            int n, int k, const void* alpha, const void* a, cudaDataType_t a_type, int lda,
                            const void* b, cudaDataType_t b_type, int ldb, const void* beta, void* c,
                            cudaDataType_t c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t /*algo*/) {
  const bool fits = *static_cast<const float*>(alpha) == 1.0f && a_type == b_type && c_type == CUDA_R_32F &&
                    m > 0 && n > 0 && lda >= (op_a == CUBLAS_OP_N ? m : k) &&
                    ldb >= (op_b == CUBLAS_OP_N ? k : n) && ldc >= m;
  if (FailsNow() || !handle->has_workspace || !fits) return CUBLAS_STATUS_EXECUTION_FAILED;
  const bool accumulate = *static_cast<const float*>(beta) == 1.0f;
  ccs::emulation::Enqueue(handle->stream, [=] {
    const Floats first(a, a_type, compute, op_a == CUBLAS_OP_N ? k : m, op_a == CUBLAS_OP_N ? m : k, lda);
    const Floats second(b, b_type, compute, op_b == CUBLAS_OP_N ? n : k, op_b == CUBLAS_OP_N ? k : n, ldb);
    // By rows this is c' = op(b)' op(a)'.
    const absl::Status status = ccs::kernels::Multiply(
        {n, m, k}, {second.values.data(), ldb, op_b == CUBLAS_OP_T},
        {first.values.data(), lda, op_a == CUBLAS_OP_T}, accumulate, static_cast<float*>(c), ldc);
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::abort();
  });
  return CUBLAS_STATUS_SUCCESS;
}
