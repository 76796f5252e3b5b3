#include "tests/kernels/backend_under_test.h"

namespace ccs::kernels {

absl::StatusOr<std::unique_ptr<ShardBackend>> MakeBackend(const ShardConfig& config) {
  return MakeCpuBackend(config);
}

std::vector<Shape> RaggedShapes() {
  return {
      {1, 1, 8, 1, 1},                                  // one class: no negatives at all
      {2, 3, 5, 3, 1},                                  // empty shard, odd width
      {50, 2, 4, 4, 1},                                 // less than a vector
      {97, 1, 33, 130, 1},                              // just over a chunk
      {1100, 1, 17, 7, 1},                              // just over a tile
      {2600, 2, 64, 40, 0.9},                           // ragged tiles
      {3000, 3, 32, 129, 0.5}, {900, 2, 96, 64, 0.02},  // positives exceed the sample
      {1500, 5, 128, 16, 0.1},
  };
}

Shape SeveralTiles() { return {4100, 2, 40, 300, 0.7}; }

}  // namespace ccs::kernels
