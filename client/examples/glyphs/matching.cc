#include "client/examples/glyphs/matching.h"

#include <ATen/ATen.h>

#include "client/examples/glyphs/backbone.h"
#include "client/examples/glyphs/product.h"

namespace glyphs {
namespace {

constexpr int64_t kQueriesAtOnce = 1024;

at::Tensor AsRows(absl::Span<const float> values) {
  const int64_t rows = static_cast<int64_t>(values.size()) / kDim;
  return at::from_blob(const_cast<float*>(values.data()), {rows, kDim});
}

at::Tensor Normalised(const at::Tensor& rows) {
  return rows / rows.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12);
}

}  // namespace

double RankOne(absl::Span<const float> queries, absl::Span<const int64_t> labels,
               absl::Span<const float> candidates) {
  if (labels.empty()) return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor units = Normalised(AsRows(candidates));
  const at::Tensor all = AsRows(queries);
  int64_t hits = 0;
  for (int64_t first = 0; first < all.size(0); first += kQueriesAtOnce) {
    const at::Tensor nearest = Product(all.slice(0, first, first + kQueriesAtOnce), units).argmax(1);
    for (int64_t i = 0; i < nearest.numel(); ++i) {
      hits += nearest.data_ptr<int64_t>()[i] == labels[static_cast<size_t>(first + i)] ? 1 : 0;
    }
  }
  return static_cast<double>(hits) / static_cast<double>(labels.size());
}

}  // namespace glyphs
