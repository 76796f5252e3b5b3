#include "client/examples/glyphs/product.h"

namespace glyphs {
namespace {

// libtorch leaves 1x1 convolutions of smaller batches to libblas too when it has one thread.
constexpr int64_t kImages = 16;

}  // namespace

// A 1x1 convolution over images of one line whose pixels are the rows of `a`: those go to oneDNN.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b) {
  const int64_t rows = a.size(0), k = a.size(1), width = (rows + kImages - 1) / kImages;
  const at::Tensor padded = at::constant_pad_nd(a, {0, 0, 0, kImages * width - rows});
  const at::Tensor images = padded.reshape({kImages, 1, width, k}).permute({0, 3, 1, 2});
  const at::Tensor products = at::conv2d(images, b.reshape({-1, k, 1, 1}));
  return products.permute({0, 2, 3, 1}).reshape({kImages * width, -1}).slice(0, 0, rows);
}

}  // namespace glyphs
