// How rows and records lie in RocksDB; FORMAT.md describes it.
#ifndef CCS_SERVER_STORAGE_ROW_BLOCK_H_
#define CCS_SERVER_STORAGE_ROW_BLOCK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "server/storage/checkpoint_store.h"

namespace ccs {

inline constexpr char kRecordKind = 'n';
inline constexpr char kRowsKind = 'r';

// The rows that a shard has of one block.
struct RowBlock {
  int64_t key_class = 0;    // the block's first class, a multiple of rows_per_block
  int64_t first_class = 0;  // the first one that the shard owns
  int64_t num_rows = 0;
};

// The block around `class_id`, of a shard that owns [class_start, class_start + num_local).
RowBlock BlockOf(int64_t class_id, int64_t rows_per_block, int64_t class_start, int64_t num_local);

// 'r' and key_class, big-endian, so that RocksDB's order is that of the classes.
std::string RowsKey(const RowBlock& block);
std::string RecordKey(std::string_view name);

// What precedes the weights and the momentum in a block's value: first_class and num_rows, little-endian
// int64.
std::string RowsPrefix(const RowBlock& block);
inline constexpr size_t kRowsPrefixBytes = 16;

// RocksDB without anything that files written once have no use for.
rocksdb::Options DatabaseOptions();
// In place of RocksDB's own log: its errors come as statuses.
std::shared_ptr<rocksdb::Logger> NoInfoLog();

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_ROW_BLOCK_H_
