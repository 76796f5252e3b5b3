// The nearest columns of each batch row. One warp a row.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.cuh"

namespace ccs::kernels::cuda {
namespace {

// Puts a column where it belongs in a row's list, whose last entry drops out.
__device__ void Insert(double cosine, int64_t class_id, int k, double* cosines, int64_t* class_ids) {
  int at = k - 1;
  for (; at > 0; --at) {
    const bool nearer =
        cosine > cosines[at - 1] || (cosine == cosines[at - 1] && class_id < class_ids[at - 1]);
    if (!nearer) break;
    cosines[at] = cosines[at - 1];
    class_ids[at] = class_ids[at - 1];
  }
  cosines[at] = cosine;
  class_ids[at] = class_id;
}

template <int kWidth>
__global__ void FindNearestKernel(ScoredTile tile, NearestColumns nearest) {
  const int64_t row = WarpInGrid();
  if (row >= tile.batch.rows) return;
  const double slack = nearest.slack * (nearest.unit_features ? 1.0 : tile.batch.norms[row]);
  double* best = nearest.cosines + row * nearest.k;
  int64_t* ids = nearest.class_ids + row * nearest.k;
  const int64_t target = tile.target_columns[row] < 0 ? -1 : tile.target_columns[row] - tile.tile.first;
  double last = best[nearest.k - 1];
  for (int base = 0; base < tile.tile.columns; base += kWarpSize) {
    const int own = base + Lane();
    const bool may =
        own < tile.tile.columns && own != target && tile.cosines[row * tile.stride + own] >= last - slack;
    for (unsigned found = __ballot_sync(kAllLanes, may); found != 0; found &= found - 1) {
      const int column = base + __ffs(static_cast<int>(found)) - 1;
      const int64_t local = LocalRow(tile.rows, tile.tile.first + column);
      const double cosine = WarpCosine<kWidth>(tile.batch.features + row * tile.batch.dim,
                                               tile.rows.weight + local * tile.rows.dim, tile.rows.dim);
      // Columns come in the order of their ids, so an equal cosine is no nearer than the last.
      if (Lane() == 0 && cosine > last) {
        Insert(cosine, nearest.class_start + local, nearest.k, best, ids);
      }
      __syncwarp();
      last = best[nearest.k - 1];
      __syncwarp();  // before the next one changes it
    }
  }
}

}  // namespace

cudaError_t FindNearest(const ScoredTile& scored, const NearestColumns& nearest, cudaStream_t stream) {
  return Launch(IsWide(scored.batch.dim) ? FindNearestKernel<4> : FindNearestKernel<1>,
                BlocksFor(scored.batch.rows, kBlockWarps), kBlockThreads, stream, scored, nearest);
}

}  // namespace ccs::kernels::cuda
