// The promised accuracy as an assertion.
#ifndef CCS_TESTS_KERNELS_EXPECT_CLOSE_H_
#define CCS_TESTS_KERNELS_EXPECT_CLOSE_H_

#include <gtest/gtest.h>

#include <string>

#include "absl/types/span.h"
#include "tests/testing/step_reference.h"

namespace ccs::kernels {

inline constexpr double kWhole = 1e-6;
inline constexpr double kRow = 2e-5;

struct Tolerance {
  double whole = kWhole;
  double row = kRow;
};

// As a whole and row by row (pass 0 for one row only).
inline void ExpectClose(const std::string& what, absl::Span<const float> got, absl::Span<const double> want,
                        int row_width, const Tolerance& tolerance = {}) {
  EXPECT_LE(testing::RelativeError(got, want), tolerance.whole) << what;
  for (size_t at = 0; row_width > 0 && at < want.size(); at += row_width) {
    ASSERT_LE(testing::RelativeError(got.subspan(at, row_width), want.subspan(at, row_width)), tolerance.row)
        << what << ", row " << at / row_width;
  }
}

}  // namespace ccs::kernels

#endif  // CCS_TESTS_KERNELS_EXPECT_CLOSE_H_
