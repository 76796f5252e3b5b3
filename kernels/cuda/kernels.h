// The launches of a shard's own kernels. Each only queues on `stream` and returns whether that went well;
// none allocates or waits, and a launch over nothing does nothing. Pointers are device memory; no two may
// overlap unless said otherwise. Layout as in shard_backend.h; `first` and `columns` name a tile of the
// sample.
#ifndef CCS_KERNELS_CUDA_KERNELS_H_
#define CCS_KERNELS_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/head.h"

namespace ccs::kernels::cuda {

// What the factors of the matrix products are made of.
enum class Element { kFloat, kBFloat16 };

// The shard's rows and which of them take part.
struct Rows {
  float* weight;          // [num_local, D]
  float* momentum;        // [num_local, D]
  const int64_t* sample;  // [n] local rows, or null: every row
  int dim;
};

// The batch on the device.
struct Batch {
  float* features;  // [B, D], unit rows if so configured
  double* norms;    // [B] of the features as given
  int rows;
  int dim;
};

struct Tile {
  int64_t first;
  int columns;
};

// A softmax over columns that arrive tile by tile.
struct RunningSoftmax {
  float max;
  double exp_sum;  // of exp(z - max)
};

// One row's gradient with respect to its logits, see GradientFactors in softmax.h.
struct RowFactors {
  float reference;
  float other;
  float numerator;
  float target;
};

// ---- Rows.

// Weights of rows [0, num_local) from N(0, 0.01^2) by (seed, class id); momentum 0.
cudaError_t InitialiseRows(const Rows& rows, int64_t num_local, int64_t class_start, uint64_t seed,
                           cudaStream_t stream);

// unit_rows [tile.columns, D] of `element`, rows `stride` elements apart, overwritten with w / max(|w|,
// 1e-12).
cudaError_t GatherUnitRows(const Rows& rows, const Tile& tile, Element element, void* unit_rows, int stride,
                           cudaStream_t stream);

struct Update {
  float learning_rate;
  float momentum;
  float weight_decay;
};

// Takes gradients [tile.columns, D] with respect to the tile's unit rows through the normalisation, weight
// decay and momentum into the rows.
cudaError_t UpdateRows(const Rows& rows, const Tile& tile, const float* gradients, const Update& update,
                       cudaStream_t stream);

// ---- Batch.

// Sets norms and, with `normalise`, makes the features unit rows in place. `factors` [B, D] of bfloat16, rows
// `stride` apart, get a copy; null where the products read the features themselves.
cudaError_t PrepareFeatures(const Batch& batch, bool normalise, void* factors, int stride,
                            cudaStream_t stream);

// cosines [B] of each batch row with local row targets [B] in double; rows whose target is -1 are left alone.
cudaError_t TargetCosines(const Batch& batch, const Rows& rows, const int64_t* targets, double* cosines,
                          cudaStream_t stream);

// numerator [B, D] *= its row's factor, += the target's term.
cudaError_t ScaleNumerator(const Batch& batch, const Rows& rows, const int64_t* targets,
                           const RowFactors* factors, float* numerator, cudaStream_t stream);

// gradient [num_rows, D], of batch rows from `first_row` on, through the feature normalisation, in place.
cudaError_t FinishGradient(const Batch& batch, int first_row, int num_rows, float* gradient,
                           cudaStream_t stream);

// ---- A tile of logits.

// What the two functions below read. Cosines and weights are [B, tile.columns], rows `stride` values apart, a
// multiple of 4; they may be the same memory if weights are floats.
struct ScoredTile {
  Batch batch;
  Rows rows;
  Tile tile;
  LogitRule rule;
  const float* cosines;
  int stride;
  const int64_t* target_columns;  // [B] within the sample, -1 if elsewhere: no other columns
  Element element;                // of the weights
  void* weights;                  // overwritten
};

// weights = exp(z - max) with the rows' running maxima, 0 where filtered and in target columns; `numerator`
// [B, D] (null if there is none) is scaled down where a maximum grew. Columns with a large share of their row
// get their cosine again in double.
cudaError_t AddTileToSoftmax(const ScoredTile& scored, RunningSoftmax* running, float* numerator,
                             cudaStream_t stream);

// weights = G.
cudaError_t GradientTile(const ScoredTile& scored, const RowFactors* factors, cudaStream_t stream);

// ---- Queries.

// The best columns of each batch row so far, best first: cosines in double and class ids, each [B, k].
struct NearestColumns {
  double* cosines;
  int64_t* class_ids;
  int k;
  int64_t class_start;
  double slack;  // more than a cosine of unit features in `scored` is ever off
  bool unit_features;
};

// Takes the columns of a tile into the lists. Columns in target_columns are left out; weights are not
// touched.
cudaError_t FindNearest(const ScoredTile& scored, const NearestColumns& nearest, cudaStream_t stream);

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_KERNELS_H_
