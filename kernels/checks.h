// What a backend refuses before it computes, in the same words on every device. All return INVALID_ARGUMENT.
#ifndef CCS_KERNELS_CHECKS_H_
#define CCS_KERNELS_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/head.h"
#include "kernels/shard_backend.h"

namespace ccs::kernels {

// The sizes alone: so small that no count of bytes overflows. Precisions are the device's business.
absl::Status CheckSizes(const ShardConfig& config);

// [first_row, first_row + num_rows) lies within the shard.
absl::Status CheckRange(int64_t first_row, int64_t num_rows, const ShardConfig& config);

// No more than max_batch labels, none below -1.
absl::Status CheckLabels(absl::Span<const int64_t> labels, int max_batch);

// Neither NaN nor infinity; `norm` is the row's.
absl::Status CheckFinite(double norm, int batch_row);

absl::Status CheckHead(const Head& head, bool normalise_features);

// Sorted, without repeats, within the shard.
absl::Status CheckSample(absl::Span<const int64_t> rows, const ShardConfig& config);

// Where in the sample the class of a batch row is; -1 if it is another shard's or the row has none. Refuses a
// sample that lacks a class of this shard.
absl::StatusOr<int64_t> TargetColumn(int64_t label, int batch_row, absl::Span<const int64_t> rows,
                                     const ShardConfig& config);

// Rows [first_row, first_row + num_rows) are within the batch.
absl::Status CheckBatchRange(int first_row, int num_rows, int batch);

}  // namespace ccs::kernels

#endif  // CCS_KERNELS_CHECKS_H_
