// Matrix products at full speed in Debian's libtorch, which hands at::mm to libblas, by default the slow
// reference.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_PRODUCT_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_PRODUCT_H_

#include <ATen/ATen.h>

namespace glyphs {

// a [rows, k] times the transpose of b [columns, k]: [rows, columns]. Differentiable.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b);

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_PRODUCT_H_
