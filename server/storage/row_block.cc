#include "server/storage/row_block.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "rocksdb/table.h"

namespace ccs {
namespace {

static_assert(std::endian::native == std::endian::little, "floats are stored as they lie in memory");

constexpr int64_t kBlockBytes = 4096;

// RocksDB's own log would be one more file that the manifest must vouch for.
class NoLog : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char* /*format*/, va_list /*arguments*/) override {}
};

}  // namespace

int64_t RowsPerBlock(int dim) {
  return std::max<int64_t>(1, kBlockBytes / (2 * static_cast<int64_t>(sizeof(float)) * dim));
}

RowBlock BlockOf(int64_t class_id, int64_t rows_per_block, int64_t class_start, int64_t num_local) {
  const int64_t key_class = class_id / rows_per_block * rows_per_block;
  const int64_t first = std::max(key_class, class_start);
  return {key_class, first, std::min(key_class + rows_per_block, class_start + num_local) - first};
}

std::string RowsKey(const RowBlock& block) {
  std::string key(1, kRowsKind);
  for (int shift = 56; shift >= 0; shift -= 8) key.push_back(static_cast<char>(block.key_class >> shift));
  return key;
}

std::string RecordKey(std::string_view name) { return std::string(1, kRecordKind).append(name); }

std::string RowsPrefix(const RowBlock& block) {
  std::string prefix(reinterpret_cast<const char*>(&block.first_class), sizeof(int64_t));
  return prefix.append(reinterpret_cast<const char*>(&block.num_rows), sizeof(int64_t));
}

std::shared_ptr<rocksdb::Logger> NoInfoLog() { return std::make_shared<NoLog>(); }

rocksdb::Options DatabaseOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.info_log = NoInfoLog();
  options.compression = rocksdb::kNoCompression;  // weights do not compress
  options.write_buffer_size = size_t{64} << 20;
  options.max_write_buffer_number = 3;
  options.disable_auto_compactions = true;  // who writes decides when to write everything anew
  options.level0_slowdown_writes_trigger = std::numeric_limits<int>::max();
  options.level0_stop_writes_trigger = std::numeric_limits<int>::max();
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  table.block_size = size_t{64} << 10;  // rows are read in order
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace ccs
