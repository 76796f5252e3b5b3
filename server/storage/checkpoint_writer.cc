#include "server/storage/checkpoint_writer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rocksdb/db.h"
#include "server/fault_point.h"
#include "server/storage/checkpoint_files.h"
#include "server/storage/files.h"
#include "server/storage/manifest.h"
#include "server/storage/row_block.h"
#include "server/storage/status_util.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

class RocksWriter : public CheckpointWriter {
 public:
  RocksWriter(fs::path target, const CheckpointHeader& header, const std::optional<Manifest>& base,
              std::function<void()> on_commit)
      : target_(std::move(target)), base_(base), on_commit_(std::move(on_commit)) {
    static std::atomic<int> counter{0};
    temporary_ = absl::StrCat(target_.string(), kLeftoverMark, getpid(), "-", counter++);
    manifest_.header = header;
    manifest_.rows_per_block = RowsPerBlock(header.dim);
    next_class_ = header.class_start;
    const int64_t last = std::max(header.class_start, end_class() - 1);
    written_.resize(header.num_local == 0 ? 0 : BlockNumber(last) - BlockNumber(header.class_start) + 1);
  }

  ~RocksWriter() override {
    database_.reset();
    std::error_code ignored;  // what stays is cleared when the store is opened next
    fs::remove_all(temporary_, ignored);
  }

  absl::Status Open() {
    // Early, so that a header that the manifest cannot hold costs nothing.
    if (absl::Status status = WriteManifest(manifest_).status(); !status.ok()) return status;
    std::error_code error;
    fs::create_directory(temporary_, error);
    if (error) return ErrnoToStatus(error.value(), "create", temporary_);
    if (base_) {
      if (absl::Status status = TakeBase(); !status.ok()) return status;
    }
    rocksdb::DB* database = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(DatabaseOptions(), rows_directory().string(), &database);
    database_.reset(database);
    if (!status.ok()) return RocksToStatus(status, rows_directory());
    return base_ ? ForgetRecords() : absl::OkStatus();
  }

  absl::Status AddRows(int64_t first_class, int64_t num_rows, const float* weight,
                       const float* momentum) override;
  absl::Status AddRecord(const std::string& name, const std::string& value) override;
  absl::StatusOr<CheckpointSize> Commit() override;

 private:
  int64_t end_class() const { return manifest_.header.class_start + manifest_.header.num_local; }
  int64_t BlockNumber(int64_t class_id) const { return class_id / manifest_.rows_per_block; }
  fs::path rows_directory() const { return temporary_ / kRowsDirectory; }

  absl::Status CheckOpen() const {
    return database_ != nullptr ? absl::OkStatus()
                                : absl::FailedPreconditionError("the checkpoint is finished or has failed");
  }
  absl::Status TakeBase();
  absl::Status ForgetRecords();
  absl::Status CheckOrder(int64_t first_class, int64_t num_rows) const;
  absl::Status Put(const std::string& key, std::initializer_list<rocksdb::Slice> value);
  absl::Status PutBlock(const RowBlock& block, const float* weight, const float* momentum);
  absl::Status DescribeFiles();

  const fs::path target_;
  fs::path temporary_;
  const std::optional<Manifest> base_;
  const std::function<void()> on_commit_;
  Manifest manifest_;
  int64_t new_bytes_ = 0;
  std::unique_ptr<rocksdb::DB> database_;  // null after Commit or a failure
  std::vector<bool> written_;              // by block, from the range's first one
  int64_t next_class_ = 0;
  // The beginning of the block that next_class_ lies in: [rows so far, dim] each.
  std::vector<float> weight_;
  std::vector<float> momentum_;
};

absl::Status RocksWriter::TakeBase() {
  const CheckpointHeader& base = base_->header;
  const CheckpointHeader& header = manifest_.header;
  if (base.class_start != header.class_start || base.num_local != header.num_local ||
      base.dim != header.dim || base_->rows_per_block != manifest_.rows_per_block) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", base.id.ToString(), " has other classes or blocks"));
  }
  std::error_code error;
  fs::create_directory(rows_directory(), error);
  if (error) return ErrnoToStatus(error.value(), "create", rows_directory());
  const fs::path from = target_.parent_path() / base.id.ToString();
  for (const auto& [name, digest] : base_->files) {
    if (absl::Status status = LinkOrCopy(from / name, temporary_ / name); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RocksWriter::ForgetRecords() {
  const std::string begin = RecordKey("");
  const std::string end(1, kRecordKind + 1);
  rocksdb::WriteOptions options;
  options.disableWAL = true;  // Commit flushes
  return RocksToStatus(database_->DeleteRange(options, database_->DefaultColumnFamily(), begin, end),
                       rows_directory());
}

absl::Status RocksWriter::Put(const std::string& key, std::initializer_list<rocksdb::Slice> value) {
  const rocksdb::Slice key_slice(key);
  rocksdb::WriteBatch batch;
  rocksdb::Status status = batch.Put(rocksdb::SliceParts(&key_slice, 1),
                                     rocksdb::SliceParts(value.begin(), static_cast<int>(value.size())));
  rocksdb::WriteOptions options;
  options.disableWAL = true;  // Commit flushes
  if (status.ok()) status = database_->Write(options, &batch);
  if (!status.ok()) database_.reset();
  return RocksToStatus(status, rows_directory());
}

absl::Status RocksWriter::CheckOrder(int64_t first_class, int64_t num_rows) const {
  const CheckpointHeader& header = manifest_.header;
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(num_rows, " rows from class ", first_class, ": ", why...));
  };
  if (num_rows < 0 || first_class < header.class_start || num_rows > end_class() - first_class) {
    return refuse("the checkpoint is of classes ", header.class_start, " to ", end_class() - 1);
  }
  if (num_rows == 0) return absl::OkStatus();
  if (first_class != next_class_) {
    const RowBlock block =
        BlockOf(first_class, manifest_.rows_per_block, header.class_start, header.num_local);
    if (!weight_.empty() || first_class != block.first_class) {
      return refuse("class ", next_class_, " is next, or the beginning of a block");
    }
  }
  const int64_t base = BlockNumber(header.class_start);
  const int64_t end = BlockNumber(first_class + num_rows - 1);
  for (int64_t block = BlockNumber(first_class); block <= end; ++block) {
    if (written_[block - base]) return refuse("block ", block, " has been written");
  }
  return absl::OkStatus();
}

absl::Status RocksWriter::AddRows(int64_t first_class, int64_t num_rows, const float* weight,
                                  const float* momentum) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (absl::Status status = CheckOrder(first_class, num_rows); !status.ok()) return status;
  const CheckpointHeader& header = manifest_.header;
  if (num_rows > 0) next_class_ = first_class;
  while (num_rows > 0) {
    const RowBlock block =
        BlockOf(next_class_, manifest_.rows_per_block, header.class_start, header.num_local);
    const int64_t taken = std::min(num_rows, block.first_class + block.num_rows - next_class_);
    const int64_t floats = taken * header.dim;
    absl::Status status;
    if (taken == block.num_rows) {
      status = PutBlock(block, weight, momentum);
    } else {
      weight_.insert(weight_.end(), weight, weight + floats);
      momentum_.insert(momentum_.end(), momentum, momentum + floats);
      if (static_cast<int64_t>(weight_.size()) == block.num_rows * header.dim) {
        status = PutBlock(block, weight_.data(), momentum_.data());
        weight_.clear();
        momentum_.clear();
      }
    }
    if (!status.ok()) return status;
    weight += floats;
    momentum += floats;
    num_rows -= taken;
    next_class_ += taken;
  }
  return absl::OkStatus();
}

absl::Status RocksWriter::PutBlock(const RowBlock& block, const float* weight, const float* momentum) {
  ReachFaultPoint("checkpoint/block");
  const size_t bytes = block.num_rows * manifest_.header.dim * sizeof(float);
  written_[BlockNumber(block.first_class) - BlockNumber(manifest_.header.class_start)] = true;
  return Put(RowsKey(block), {RowsPrefix(block), rocksdb::Slice(reinterpret_cast<const char*>(weight), bytes),
                              rocksdb::Slice(reinterpret_cast<const char*>(momentum), bytes)});
}

absl::Status RocksWriter::AddRecord(const std::string& name, const std::string& value) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  return Put(RecordKey(name), {value});
}

absl::StatusOr<CheckpointSize> RocksWriter::Commit() {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  const auto missing = std::find(written_.begin(), written_.end(), false);
  if (!weight_.empty() || (!base_ && missing != written_.end())) {
    return absl::FailedPreconditionError(
        absl::StrCat("rows are missing of block ",
                     missing - written_.begin() + BlockNumber(manifest_.header.class_start)));
  }
  rocksdb::Status flushed = database_->Flush(rocksdb::FlushOptions());
  if (flushed.ok()) flushed = database_->Close();
  database_.reset();
  if (!flushed.ok()) return RocksToStatus(flushed, rows_directory());
  if (absl::Status status = DescribeFiles(); !status.ok()) return status;
  const absl::StatusOr<std::string> text = WriteManifest(manifest_);
  if (!text.ok()) return text.status();
  if (absl::Status status = WriteFile(temporary_ / kManifestName, *text); !status.ok()) return status;
  absl::Status synced = manifest_.header.kept ? MarkKept(temporary_) : Sync(temporary_);
  if (!synced.ok()) return synced;
  ReachFaultPoint("checkpoint/before_commit");
  if (absl::Status status = Publish(temporary_, target_); !status.ok()) return status;
  ReachFaultPoint("checkpoint/after_commit");
  on_commit_();
  return CheckpointSize{manifest_.bytes(), new_bytes_};
}

// Digests are of what the files hold once they are on disk, read back, not of what was meant to be written. A
// table of the base has the base's: were it damaged meanwhile, a digest of now would vouch for the damage.
absl::Status RocksWriter::DescribeFiles() {
  const absl::StatusOr<std::vector<fs::path>> files = ListDirectory(rows_directory());
  if (!files.ok()) return files.status();
  for (const fs::path& file : *files) {
    const std::string name = file.lexically_relative(temporary_).string();
    if (base_ && IsTable(file)) {
      if (const auto known = base_->files.find(name); known != base_->files.end()) {
        manifest_.files[name] = known->second;
        continue;
      }
    }
    if (absl::Status status = Sync(file); !status.ok()) return status;
    absl::StatusOr<FileDigest> digest = DigestFile(file);
    if (!digest.ok()) return digest.status();
    new_bytes_ += digest->size;
    manifest_.files[name] = *std::move(digest);
  }
  return Sync(rows_directory());
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointWriter>> MakeCheckpointWriter(const fs::path& shard_directory,
                                                                       const CheckpointHeader& header,
                                                                       const std::optional<Manifest>& base,
                                                                       std::function<void()> on_commit) {
  const fs::path target = shard_directory / header.id.ToString();
  if (std::error_code error; fs::exists(target, error))
    return absl::AlreadyExistsError(absl::StrCat(target.string(), " exists"));
  auto writer = std::make_unique<RocksWriter>(target, header, base, std::move(on_commit));
  if (absl::Status status = writer->Open(); !status.ok()) return status;
  return writer;
}

}  // namespace ccs
