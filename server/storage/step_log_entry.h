// Keys and values of the step log's index; FORMAT.md describes them.
#ifndef CCS_SERVER_STORAGE_STEP_LOG_ENTRY_H_
#define CCS_SERVER_STORAGE_STEP_LOG_ENTRY_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace ccs {

// The first byte of a key.
inline constexpr char kLogBeginKind = 'b';
inline constexpr char kLogRecordKind = 'r';

// Whole keys of which there is one each.
inline constexpr char kLogVersionKey[] = "v";
inline constexpr char kLogWrittenKey[] = "w";  // number of the last write
inline constexpr char kLogAppliedKey[] = "a";  // how many writes there were

// How a lineage begins, and which of its records is the first that is kept.
struct LogBeginEntry {
  int64_t step = 0;
  int64_t first = 1;
  std::string begin;
  friend bool operator==(const LogBeginEntry&, const LogBeginEntry&) = default;
};

// Where a record's payload is, and what vouches for it.
struct LogRecordEntry {
  int64_t step = 0;
  uint64_t payload = 0;  // its number
  int64_t bytes = 0;
  std::string digest;  // of the payload, 32 characters
  friend bool operator==(const LogRecordEntry&, const LogRecordEntry&) = default;
};

// Sort by lineage, then by index.
std::string LogBeginKey(uint64_t lineage);
std::string LogRecordKey(uint64_t lineage, int64_t index);
// Sort by number.
std::string LogPayloadKey(uint64_t number);
// After every index.
inline constexpr int64_t kMaxLogIndex = std::numeric_limits<int64_t>::max();

struct LogKey {
  uint64_t lineage = 0;
  int64_t index = 0;  // 0 in the key of a begin entry
};
// Nothing if it is not a key of one of the two.
std::optional<LogKey> ParseLogKey(std::string_view key);

// Values end in a digest of the key and what precedes it, so that a damaged one, or one of another key, is
// nothing when it is decoded.
std::string EncodeLogEntry(std::string_view key, const LogBeginEntry& entry);
std::string EncodeLogEntry(std::string_view key, const LogRecordEntry& entry);
std::string EncodeLogNumber(std::string_view key, uint64_t number);
std::optional<LogBeginEntry> DecodeLogBegin(std::string_view key, std::string_view value);
std::optional<LogRecordEntry> DecodeLogRecord(std::string_view key, std::string_view value);
std::optional<uint64_t> DecodeLogNumber(std::string_view key, std::string_view value);

// Eight bytes, little-endian.
std::string LogInteger(uint64_t number);
uint64_t ReadLogInteger(std::string_view bytes);

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_STEP_LOG_ENTRY_H_
