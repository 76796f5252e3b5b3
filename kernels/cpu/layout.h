// Shapes and memory of a CPU shard.
#ifndef CCS_KERNELS_CPU_LAYOUT_H_
#define CCS_KERNELS_CPU_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/arena.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/shard_backend.h"
#include "kernels/softmax.h"

namespace ccs::kernels {

// Batch rows go through the products in chunks, sampled classes in tiles. The shapes depend on the model
// alone, never on the threads or the byte budget: that is why results do not either. See README.md for
// how they were chosen.
inline constexpr int kChunkRows = 128;
inline constexpr int kTileColumns = 1024;
// Rows of scratch matrices start this much further apart than their width: a power of two between rows puts
// a whole column into one set of the cache (measured: a third of the speed of a product).
inline constexpr int kStridePadding = 16;
inline constexpr int kTileStride = kTileColumns + kStridePadding;

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What one shard keeps of one batch row.
struct BatchRow {
  double norm;            // of the features as given
  RunningSoftmax others;  // over the other sampled columns
  // Of its own class, if that is here.
  int64_t target_column;  // among the sampled rows, else -1
  double target_cosine;
  double target_slope;      // psi'(c)
  GradientFactors factors;  // from Combine on
};

// A worker's own memory, used for one chunk of one tile at a time.
struct Scratch {
  float* unit_rows;  // [kTileColumns, D] a packed tile; rows `row_stride` apart
  float* gradient;   // [kTileColumns, D] of a tile's unit rows; likewise
  float* weights;    // [kChunkRows, kTileColumns], rows kTileStride apart
};

// All arrays of a shard. Pointers belong to the arena that they were laid out in.
struct Layout {
  Layout(const ShardConfig& config, Arena* state, Arena* workspace);

  int row_stride;  // of Scratch
  int64_t kept_floats;

  float* weight;    // [num_local, D]
  float* momentum;  // [num_local, D]

  float* features;       // [max_batch, D]
  float* numerator;      // [max_batch, D]; gradient_sum after Combine
  int64_t* labels;       // [max_batch]
  BatchRow* rows;        // [max_batch]
  RowPartial* partials;  // [max_batch]
  RowPartial* gathered;  // [num_shards, max_batch]
  float* kept;           // [kept_floats]: cosines of the first tiles, each [B, kTileColumns]
  Scratch* scratch;      // [threads]
};

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CPU_LAYOUT_H_
