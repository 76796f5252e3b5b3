// Plain text for people.
#ifndef CCS_CLIENT_CTL_TABLE_H_
#define CCS_CLIENT_CTL_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace ccs::client {

// Rows under a header line, columns as wide as their longest cell, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  // Requires as many cells as the header has.
  void AddRow(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string HumanBytes(int64_t bytes);  // e.g. "1.5 GiB"
std::string UtcTime(double unix_s);     // e.g. "2026-01-31 12:00:00Z"

}  // namespace ccs::client

#endif  // CCS_CLIENT_CTL_TABLE_H_
