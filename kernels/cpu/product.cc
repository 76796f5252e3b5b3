#include "kernels/cpu/product.h"

#include <dnnl.h>
#include <omp.h>

#include "absl/strings/str_cat.h"

namespace ccs::kernels {
namespace {

// The library would start threads of its own; the setting is the calling thread's and put back after.
class OneOmpThread {
 public:
  OneOmpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOmpThread() { omp_set_num_threads(before_); }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

 private:
  int before_;
};

}  // namespace

absl::Status Multiply(const ProductShape& shape, const Factor& a, const Factor& b, bool accumulate, float* c,
                      int c_stride) {
  const OneOmpThread one_thread;
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', shape.rows, shape.columns, shape.depth,
                 1.0f, a.data, a.stride, b.data, b.stride, accumulate ? 1.0f : 0.0f, c, c_stride);
  if (status == dnnl_success) return absl::OkStatus();
  const std::string message = absl::StrCat("oneDNN failed to multiply: status ", static_cast<int>(status));
  return status == dnnl_out_of_memory ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

std::string ProductLibrary() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat("oneDNN ", version->major, ".", version->minor);
}

}  // namespace ccs::kernels
