// The kind of backend that a test binary is about. The suites of this folder are built once for each, which
// says what it is in its own folder's backend_under_test.cc.
#ifndef CCS_TESTS_KERNELS_BACKEND_UNDER_TEST_H_
#define CCS_TESTS_KERNELS_BACKEND_UNDER_TEST_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/shard_backend.h"

namespace ccs::kernels {

absl::StatusOr<std::unique_ptr<ShardBackend>> MakeBackend(const ShardConfig& config);

struct Shape {
  int64_t classes;
  int shards;
  int dim;
  int64_t batch;
  double rate;
};

inline void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.classes << " classes, " << shape.shards << " shards, dim " << shape.dim << ", batch "
       << shape.batch << ", rate " << shape.rate;
}

// Shapes that leave its tiles and vectors unfilled in every way.
std::vector<Shape> RaggedShapes();

// A few tiles and chunks, for the test that steps are reproducible.
Shape SeveralTiles();

}  // namespace ccs::kernels

#endif  // CCS_TESTS_KERNELS_BACKEND_UNDER_TEST_H_
