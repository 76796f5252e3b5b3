#include "server/cluster/local_collective.h"

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ccs {
namespace {

class LocalCollective : public Collective {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  absl::Status AllGather(const void* send, void* receive, absl::Span<const size_t> bytes_per_rank,
                         absl::Time /*deadline*/) override {
    return Copy(send, receive, bytes_per_rank, 1);
  }

  absl::Status ReduceScatter(const float* send, float* receive, absl::Span<const size_t> counts,
                             absl::Time /*deadline*/) override {
    return Copy(send, receive, counts, sizeof(float));
  }

  void Abort() override { aborted_ = true; }

 private:
  absl::Status Copy(const void* send, void* receive, absl::Span<const size_t> counts, size_t element) const {
    if (aborted_) return absl::UnavailableError("the collective was aborted");
    if (counts.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(counts.size(), " counts for a group of 1 rank"));
    }
    if (counts[0] > 0) std::memcpy(receive, send, counts[0] * element);
    return absl::OkStatus();
  }

  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<Collective> MakeLocalCollective() { return std::make_unique<LocalCollective>(); }

}  // namespace ccs
