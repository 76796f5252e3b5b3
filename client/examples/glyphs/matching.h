// Rank-1 recognition: which row of a matrix of unit vectors is nearest to each query.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_MATCHING_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_MATCHING_H_

#include <cstdint>

#include "absl/types/span.h"

namespace glyphs {

// Share of `queries` [labels, kDim], of unit length, whose label is the row of `candidates` [classes, kDim]
// with the highest cosine. Candidates need not be of unit length.
double RankOne(absl::Span<const float> queries, absl::Span<const int64_t> labels,
               absl::Span<const float> candidates);

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_MATCHING_H_
