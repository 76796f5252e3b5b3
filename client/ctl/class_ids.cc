#include "client/ctl/class_ids.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ccs::client {
namespace {

constexpr int64_t kMaxIds = 10'000'000;

}  // namespace

absl::StatusOr<std::vector<int64_t>> ParseClassIds(absl::string_view text) {
  std::vector<int64_t> ids;
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> ends = absl::StrSplit(piece, absl::MaxSplits('-', 1));
    const bool is_range = piece.find('-') != absl::string_view::npos;
    int64_t first = 0;
    int64_t last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) ||
        !absl::SimpleAtoi(is_range ? ends.second : ends.first, &last) || first < 0 || last < first) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", piece, "' is not a class id or a range of them; write e.g. 1,2,10-20"));
    }
    if (last - first >= kMaxIds - static_cast<int64_t>(ids.size())) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxIds, " class ids"));
    }
    for (int64_t id = first; id <= last; ++id) ids.push_back(id);
  }
  return ids;
}

}  // namespace ccs::client
