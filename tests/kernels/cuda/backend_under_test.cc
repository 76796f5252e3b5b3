#include "tests/kernels/backend_under_test.h"

#include "kernels/cuda/factory.h"

namespace ccs::kernels {

absl::StatusOr<std::unique_ptr<ShardBackend>> MakeBackend(const ShardConfig& config) {
  return MakeCudaBackend(config, 0);
}

// Tiles of the emulated device have 128 columns, warps read 128 values at once (32 where rows are not
// aligned).
std::vector<Shape> RaggedShapes() {
  return {
      {1, 1, 8, 1, 1},         // one class: no negatives at all
      {2, 3, 5, 3, 1},         // empty shard, odd width
      {50, 2, 4, 4, 1},        // less than a tile
      {129, 1, 33, 6, 1},      // just over a tile, just over a warp's values
      {300, 2, 36, 5, 0.9},    // ragged tiles
      {400, 1, 132, 9, 1},     // just over a warp's wide values
      {120, 2, 24, 40, 0.02},  // positives exceed the sample
      {700, 5, 64, 7, 0.1},
  };
}

Shape SeveralTiles() { return {420, 2, 20, 12, 0.7}; }

}  // namespace ccs::kernels
