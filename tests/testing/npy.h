// Reading NumPy's .npy files (versions 1 to 3) of little-endian float32, float64 and int64 in C order.
#ifndef CCS_TESTS_TESTING_NPY_H_
#define CCS_TESTS_TESTING_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace ccs::testing {

// Shape and values, in whichever of the three types was stored; the other vectors are empty.
struct NpyArray {
  std::vector<int64_t> shape;  // empty: a single value
  std::vector<float> float32;
  std::vector<double> float64;
  std::vector<int64_t> int64;
};

// Throws std::runtime_error that names the file.
NpyArray ReadNpy(const std::string& path);

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_NPY_H_
