// Single precision matrix products on one thread.
#ifndef CCS_KERNELS_CPU_PRODUCT_H_
#define CCS_KERNELS_CPU_PRODUCT_H_

#include <string>

#include "absl/status/status.h"

namespace ccs::kernels {

// A factor as it lies in memory: rows `stride` floats apart; `transposed` if the product wants its transpose.
struct Factor {
  const float* data;
  int stride;
  bool transposed = false;
};

struct ProductShape {
  int rows;
  int columns;
  int depth;
};

// c [rows, columns] = a * b, or += with `accumulate`; rows of c are `c_stride` floats apart. Runs on the
// calling thread alone and gives the same bits for the same shape and values.
// RESOURCE_EXHAUSTED if there is no memory for the library's packing, else INTERNAL.
absl::Status Multiply(const ProductShape& shape, const Factor& a, const Factor& b, bool accumulate, float* c,
                      int c_stride);

// Name and version of the library behind it.
std::string ProductLibrary();

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CPU_PRODUCT_H_
