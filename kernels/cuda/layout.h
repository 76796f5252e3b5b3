// Shapes and memory of a shard on a GPU.
#ifndef CCS_KERNELS_CUDA_LAYOUT_H_
#define CCS_KERNELS_CUDA_LAYOUT_H_

#include <cstdint>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "kernels/shard_backend.h"

namespace ccs::kernels::cuda {

// Sampled classes go through the products in tiles of this many, all batch rows at once. It depends on the
// model and the device alone: the largest batch's logits and weights fill half of the L2 cache.
int TileColumns(const ShardConfig& config, int64_t l2_bytes);

// All arrays of a shard. Pointers belong to the memory that they were laid out in.
struct Layout {
  Layout(const ShardConfig& config, int tile_columns, Memory* state, Memory* workspace, Memory* pinned);

  Element element;   // of the products' factors
  int tile_columns;  // and what rows of cosines, weights and kept cosines are apart
  int unit_stride;   // elements between rows of unit_rows and feature_factors
  int64_t kept_floats;

  // On the device.
  float* weight;              // [num_local, D]
  float* momentum;            // [num_local, D]
  int64_t* sample;            // [num_local]
  float* features;            // [max_batch, D]
  void* feature_factors;      // [max_batch, D] of bfloat16; null if the products read `features`
  double* norms;              // [max_batch]
  float* numerator;           // [max_batch, D]; gradient_sum after Combine
  float* gradient;            // [max_batch, D]: FinishFeatureGradient's
  int64_t* targets;           // [max_batch] local rows of the own classes, -1: elsewhere
  int64_t* target_columns;    // [max_batch] the same within the sample
  double* target_cosines;     // [max_batch]
  RunningSoftmax* running;    // [max_batch]
  RowFactors* factors;        // [max_batch]
  void* unit_rows;            // [tile_columns, D] of `element`
  float* unit_row_gradients;  // [tile_columns, D]
  float* cosines;             // [max_batch, tile_columns]
  void* weights;              // likewise, of `element`; the cosines' memory if that is float
  float* kept;                // [kept_floats]: cosines of the first tiles, each [B, tile_columns]
  void* product_workspace;

  // Pinned, on the host.
  float* host_features;          // [max_batch, D]
  float* host_gradient_sum;      // [max_batch, D]
  double* host_norms;            // [max_batch]
  int64_t* host_targets;         // [max_batch]
  int64_t* host_target_columns;  // [max_batch]
  double* host_target_cosines;   // [max_batch]
  RunningSoftmax* host_running;  // [max_batch]
  RowFactors* host_factors;      // [max_batch]
};

}  // namespace ccs::kernels::cuda

#endif  // CCS_KERNELS_CUDA_LAYOUT_H_
