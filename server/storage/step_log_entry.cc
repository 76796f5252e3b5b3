#include "server/storage/step_log_entry.h"

#include <bit>
#include <cstring>

#include "server/storage/files.h"

namespace ccs {
namespace {

static_assert(std::endian::native == std::endian::little, "integers are stored as they lie in memory");

constexpr size_t kIntegerBytes = sizeof(uint64_t);
constexpr size_t kDigestBytes = 32;
constexpr size_t kBeginKeyBytes = 1 + kIntegerBytes;
constexpr size_t kRecordKeyBytes = kBeginKeyBytes + kIntegerBytes;

void AppendBigEndian(std::string& key, uint64_t number) {
  for (int shift = 56; shift >= 0; shift -= 8) key.push_back(static_cast<char>(number >> shift));
}

uint64_t ReadBigEndian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < kIntegerBytes; ++i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

std::string DigestOfPair(std::string_view key, std::string_view body) {
  return DigestOf(std::string(key).append(body));
}

std::string Seal(std::string_view key, const std::string& body) { return body + DigestOfPair(key, body); }

// What was sealed under this key, if it is at least `bytes` long.
std::optional<std::string_view> Unseal(std::string_view key, std::string_view value, size_t bytes) {
  if (value.size() < bytes + kDigestBytes) return std::nullopt;
  const std::string_view body = value.substr(0, value.size() - kDigestBytes);
  if (DigestOfPair(key, body) != value.substr(body.size())) return std::nullopt;
  return body;
}

}  // namespace

std::string LogInteger(uint64_t number) {
  return std::string(reinterpret_cast<const char*>(&number), kIntegerBytes);
}

uint64_t ReadLogInteger(std::string_view bytes) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data(), kIntegerBytes);
  return number;
}

std::string LogBeginKey(uint64_t lineage) {
  std::string key(1, kLogBeginKind);
  AppendBigEndian(key, lineage);
  return key;
}

std::string LogRecordKey(uint64_t lineage, int64_t index) {
  std::string key(1, kLogRecordKind);
  AppendBigEndian(key, lineage);
  AppendBigEndian(key, static_cast<uint64_t>(index));
  return key;
}

std::string LogPayloadKey(uint64_t number) {
  std::string key;
  AppendBigEndian(key, number);
  return key;
}

std::optional<LogKey> ParseLogKey(std::string_view key) {
  if (key.size() == kBeginKeyBytes && key[0] == kLogBeginKind) return LogKey{ReadBigEndian(key.substr(1)), 0};
  if (key.size() != kRecordKeyBytes || key[0] != kLogRecordKind) return std::nullopt;
  return LogKey{ReadBigEndian(key.substr(1)),
                static_cast<int64_t>(ReadBigEndian(key.substr(kBeginKeyBytes)))};
}

std::string EncodeLogEntry(std::string_view key, const LogBeginEntry& entry) {
  return Seal(key, LogInteger(entry.step) + LogInteger(entry.first) + entry.begin);
}

std::string EncodeLogEntry(std::string_view key, const LogRecordEntry& entry) {
  return Seal(key,
              LogInteger(entry.step) + LogInteger(entry.payload) + LogInteger(entry.bytes) + entry.digest);
}

std::string EncodeLogNumber(std::string_view key, uint64_t number) { return Seal(key, LogInteger(number)); }

std::optional<LogBeginEntry> DecodeLogBegin(std::string_view key, std::string_view value) {
  const std::optional<std::string_view> body = Unseal(key, value, 2 * kIntegerBytes);
  if (!body.has_value()) return std::nullopt;
  return LogBeginEntry{.step = static_cast<int64_t>(ReadLogInteger(*body)),
                       .first = static_cast<int64_t>(ReadLogInteger(body->substr(kIntegerBytes))),
                       .begin = std::string(body->substr(2 * kIntegerBytes))};
}

std::optional<LogRecordEntry> DecodeLogRecord(std::string_view key, std::string_view value) {
  const std::optional<std::string_view> body = Unseal(key, value, 3 * kIntegerBytes);
  if (!body.has_value()) return std::nullopt;
  return LogRecordEntry{.step = static_cast<int64_t>(ReadLogInteger(*body)),
                        .payload = ReadLogInteger(body->substr(kIntegerBytes)),
                        .bytes = static_cast<int64_t>(ReadLogInteger(body->substr(2 * kIntegerBytes))),
                        .digest = std::string(body->substr(3 * kIntegerBytes))};
}

std::optional<uint64_t> DecodeLogNumber(std::string_view key, std::string_view value) {
  const std::optional<std::string_view> body = Unseal(key, value, kIntegerBytes);
  if (!body.has_value()) return std::nullopt;
  return ReadLogInteger(*body);
}

}  // namespace ccs
