#include "client/ctl/table.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ccs::client {
namespace {

bool IsNumeric(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) || cell[0] == '-') &&
         cell.find_first_of(":/") == std::string::npos;
}

}  // namespace

Table::Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void Table::AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::ToString() const {
  const size_t columns = rows_[0].size();
  std::vector<size_t> widths(columns);
  std::vector<bool> to_the_right(columns, rows_.size() > 1);
  for (size_t row = 0; row < rows_.size(); ++row) {
    for (size_t i = 0; i < columns; ++i) {
      widths[i] = std::max(widths[i], rows_[row][i].size());
      if (row > 0 && !IsNumeric(rows_[row][i])) to_the_right[i] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& cells : rows_) {
    std::string line;
    for (size_t i = 0; i < columns; ++i) {
      const std::string padding(widths[i] - cells[i].size(), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", to_the_right[i] ? padding : "", cells[i],
                      to_the_right[i] ? "" : padding);
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string HumanBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string UtcTime(double unix_s) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", absl::UnixEpoch() + absl::Seconds(unix_s),
                          absl::UTCTimeZone());
}

}  // namespace ccs::client
