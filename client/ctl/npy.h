// Float matrices in NumPy's .npy files.
#ifndef CCS_CLIENT_CTL_NPY_H_
#define CCS_CLIENT_CTL_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ccs::client {

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;  // [rows, cols]
};

// Reads a little-endian float32 array in C order of one dimension (one row) or two. NOT_FOUND if the file
// cannot be opened, INVALID_ARGUMENT if it holds anything else.
absl::StatusOr<Matrix> ReadNpy(const std::string& path);

}  // namespace ccs::client

#endif  // CCS_CLIENT_CTL_NPY_H_
