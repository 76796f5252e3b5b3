#include "kernels/cuda/product.h"

namespace ccs::kernels::cuda {

Element ElementOf(Precision precision) {
  return precision == Precision::kBf16 || precision == Precision::kFastest ? Element::kBFloat16
                                                                           : Element::kFloat;
}

Products::Products(Precision precision, Stream* stream, void* workspace)
    : element_(ElementOf(precision)),
      compute_(precision == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F),
      stream_(stream) {
  stream_->Note(cublasCreate(&handle_), "open cuBLAS");
  if (handle_ == nullptr) return;
  stream_->Note(cublasSetStream(handle_, stream_->get()), "open cuBLAS");
  // Its own workspace would be allocated inside a step.
  stream_->Note(cublasSetWorkspace(handle_, workspace, kProductWorkspaceBytes), "open cuBLAS");
}

Products::~Products() {
  if (handle_ != nullptr) cublasDestroy(handle_);
}

void Products::Multiply(const ProductShape& shape, const Factor& a, const Factor& b, bool accumulate,
                        float* c, int c_stride) {
  if (shape.rows == 0 || shape.columns == 0) return;
  const float alpha = 1.0f;
  const float beta = accumulate ? 1.0f : 0.0f;
  const cudaDataType_t type = element_ == Element::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
  // cuBLAS counts by columns: what it sees is c' = b' a'.
  stream_->Note(cublasGemmEx(handle_, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                             a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, shape.columns, shape.rows, shape.depth,
                             &alpha, b.data, type, b.stride, a.data, type, a.stride, &beta, c, CUDA_R_32F,
                             c_stride, compute_, CUBLAS_GEMM_DEFAULT),
                "multiply");
}

}  // namespace ccs::kernels::cuda
