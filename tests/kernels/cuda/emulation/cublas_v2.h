// What kernels/cuda calls of cuBLAS: names and meanings are cuBLAS's, the arithmetic is the CPU kernels'.
#ifndef CCS_TESTS_KERNELS_CUDA_EMULATION_CUBLAS_V2_H_
#define CCS_TESTS_KERNELS_CUDA_EMULATION_CUBLAS_V2_H_

#include <cuda_runtime_api.h>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_ALLOC_FAILED, CUBLAS_STATUS_EXECUTION_FAILED };
const char* cublasGetStatusString(cublasStatus_t status);

using cublasHandle_t = struct EmulatedCublas*;
cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes);

enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };

// c = alpha op(a) op(b) + beta c by columns; c is float, a and b are of one type, alpha is 1 and beta 0 or 1.
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                            int n, int k, const void* alpha, const void* a, cudaDataType_t a_type, int lda,
                            const void* b, cudaDataType_t b_type, int ldb, const void* beta, void* c,
                            cudaDataType_t c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algo);

#endif  // CCS_TESTS_KERNELS_CUDA_EMULATION_CUBLAS_V2_H_
