// Matrix products on the device.
#ifndef CCS_KERNELS_CUDA_PRODUCT_H_
#define CCS_KERNELS_CUDA_PRODUCT_H_

#include <cublas_v2.h>

#include <cstdint>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stream.h"
#include "kernels/shard_backend.h"

namespace ccs::kernels::cuda {

inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

// A factor as it lies in device memory: rows `stride` elements apart; `transposed` if the product wants its
// transpose.
struct Factor {
  const void* data;
  int stride;
  bool transposed = false;
};

struct ProductShape {
  int rows;
  int columns;
  int depth;
};

// What a precision's factors are made of: bfloat16 for kBf16 and kFastest, else float.
Element ElementOf(Precision precision);

// Products of one shard in its precision, accumulated in single precision. Queues on the stream, which must
// outlive it; the same shape and values give the same bits. Errors go to the stream.
class Products {
 public:
  // `workspace`: kProductWorkspaceBytes of device memory.
  Products(Precision precision, Stream* stream, void* workspace);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // c [rows, columns] = a * b, or += with `accumulate`; rows of c are `c_stride` floats apart. Does nothing
  // for a product without rows or columns; a depth of 0 clears c.
  void Multiply(const ProductShape& shape, const Factor& a, const Factor& b, bool accumulate, float* c,
                int c_stride);

 private:
  Element element_;
  cublasComputeType_t compute_;
  Stream* stream_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_PRODUCT_H_
