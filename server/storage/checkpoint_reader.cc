#include "server/storage/checkpoint_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rocksdb/db.h"
#include "server/storage/row_block.h"
#include "server/storage/status_util.h"

namespace ccs {
namespace {

constexpr size_t kReadaheadBytes = size_t{2} << 20;

class RocksReader : public CheckpointReader {
 public:
  RocksReader(std::filesystem::path path, Manifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  absl::Status Open() {
    rocksdb::DB* database = nullptr;
    const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(DatabaseOptions(), path_.string(), &database);
    database_.reset(database);
    return RocksToStatus(status, path_);
  }

  const CheckpointHeader& header() const override { return manifest_.header; }
  absl::Status ReadRows(int64_t first_class, int64_t num_rows, float* weight, float* momentum) override;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadRecords() override;

 private:
  absl::Status LoadBlock(const RowBlock& block);

  const std::filesystem::path path_;  // RocksDB's directory
  const Manifest manifest_;
  std::unique_ptr<rocksdb::DB> database_;
  std::unique_ptr<rocksdb::Iterator> rows_;
  // The block that rows_ is at, since ranges often end within one.
  int64_t loaded_key_class_ = -1;
};

absl::Status RocksReader::ReadRows(int64_t first_class, int64_t num_rows, float* weight, float* momentum) {
  const int64_t start = header().class_start;
  const int64_t end = start + header().num_local;
  if (num_rows < 0 || first_class < start || first_class > end || num_rows > end - first_class) {
    return absl::InvalidArgumentError(absl::StrCat(num_rows, " rows from class ", first_class,
                                                   " of a shard that owns [", start, ", ", end, ")"));
  }
  const size_t row_bytes = sizeof(float) * header().dim;
  while (num_rows > 0) {
    const RowBlock block = BlockOf(first_class, manifest_.rows_per_block, start, header().num_local);
    if (absl::Status status = LoadBlock(block); !status.ok()) return status;
    const int64_t skipped = first_class - block.first_class;
    const int64_t rows = std::min(num_rows, block.num_rows - skipped);
    const char* weights = rows_->value().data() + kRowsPrefixBytes;
    const char* momenta = weights + block.num_rows * row_bytes;
    std::memcpy(weight, weights + skipped * row_bytes, rows * row_bytes);
    std::memcpy(momentum, momenta + skipped * row_bytes, rows * row_bytes);
    weight += rows * header().dim;
    momentum += rows * header().dim;
    first_class += rows;
    num_rows -= rows;
  }
  return absl::OkStatus();
}

absl::Status RocksReader::LoadBlock(const RowBlock& block) {
  if (block.key_class == loaded_key_class_) return absl::OkStatus();
  loaded_key_class_ = -1;
  const std::string key = RowsKey(block);
  if (rows_ == nullptr) {
    rocksdb::ReadOptions options;
    options.readahead_size = kReadaheadBytes;
    rows_.reset(database_->NewIterator(options));
  } else if (rows_->Valid()) {
    rows_->Next();  // rows are mostly read in order
  }
  if (!rows_->Valid() || rows_->key() != key) rows_->Seek(key);
  if (!rows_->status().ok()) return RocksToStatus(rows_->status(), path_);
  const size_t bytes = kRowsPrefixBytes + 2 * sizeof(float) * block.num_rows * header().dim;
  if (!rows_->Valid() || rows_->key() != key || rows_->value().size() != bytes ||
      !rows_->value().starts_with(RowsPrefix(block))) {
    return absl::DataLossError(absl::StrCat(path_.string(), ": the rows of classes ", block.first_class,
                                            " to ", block.first_class + block.num_rows - 1, " are missing"));
  }
  loaded_key_class_ = block.key_class;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> RocksReader::ReadRecords() {
  std::vector<std::pair<std::string, std::string>> records;
  const std::string prefix = RecordKey("");
  const std::unique_ptr<rocksdb::Iterator> it(database_->NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    records.emplace_back(it->key().ToString().substr(prefix.size()), it->value().ToString());
  }
  if (!it->status().ok()) return RocksToStatus(it->status(), path_);
  return records;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointReader>> MakeCheckpointReader(const std::filesystem::path& directory,
                                                                       Manifest manifest) {
  auto reader = std::make_unique<RocksReader>(directory / kRowsDirectory, std::move(manifest));
  if (absl::Status status = reader->Open(); !status.ok()) return status;
  return reader;
}

}  // namespace ccs
