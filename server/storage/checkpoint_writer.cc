#include "server/storage/checkpoint_writer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rocksdb/db.h"
#include "server/fault_point.h"
#include "server/storage/files.h"
#include "server/storage/manifest.h"
#include "server/storage/row_block.h"
#include "server/storage/status_util.h"

namespace ccs {
namespace {

namespace fs = std::filesystem;

class RocksWriter : public CheckpointWriter {
 public:
  RocksWriter(fs::path target, const CheckpointHeader& header, std::function<void()> on_commit)
      : target_(std::move(target)), on_commit_(std::move(on_commit)), next_class_(header.class_start) {
    static std::atomic<int> counter{0};
    temporary_ = absl::StrCat(target_.string(), kLeftoverMark, getpid(), "-", counter++);
    manifest_.header = header;
    manifest_.rows_per_block = RowsPerBlock(header.dim);
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
    rocksdb::DB* database = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(DatabaseOptions(), rows_directory().string(), &database);
    database_.reset(database);
    return RocksToStatus(status, rows_directory());
  }

  absl::Status AddRows(int64_t first_class, int64_t num_rows, const float* weight,
                       const float* momentum) override;
  absl::Status AddRecord(const std::string& name, const std::string& value) override;
  absl::StatusOr<int64_t> Commit() override;

 private:
  int64_t end_class() const { return manifest_.header.class_start + manifest_.header.num_local; }
  fs::path rows_directory() const { return temporary_ / kRowsDirectory; }

  absl::Status CheckOpen() const {
    return database_ != nullptr ? absl::OkStatus()
                                : absl::FailedPreconditionError("the checkpoint is finished or has failed");
  }
  absl::Status Put(const std::string& key, std::initializer_list<rocksdb::Slice> value);
  absl::Status DescribeFiles();
  absl::Status Publish();

  const fs::path target_;
  fs::path temporary_;
  const std::function<void()> on_commit_;
  Manifest manifest_;
  std::unique_ptr<rocksdb::DB> database_;  // null after Commit or a failure
  int64_t next_class_;
  // The beginning of the block that next_class_ lies in: [rows so far, dim] each.
  std::vector<float> weight_;
  std::vector<float> momentum_;
};

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

absl::Status RocksWriter::AddRows(int64_t first_class, int64_t num_rows, const float* weight,
                                  const float* momentum) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (num_rows < 0 || first_class != next_class_ || num_rows > end_class() - first_class) {
    return absl::InvalidArgumentError(absl::StrCat(num_rows, " rows from class ", first_class,
                                                   " where class ", next_class_, " is next and ", end_class(),
                                                   " the end"));
  }
  const CheckpointHeader& header = manifest_.header;
  while (num_rows > 0) {
    const RowBlock block =
        BlockOf(next_class_, manifest_.rows_per_block, header.class_start, header.num_local);
    const int64_t taken = std::min(num_rows, block.first_class + block.num_rows - next_class_);
    const int64_t floats = taken * header.dim;
    weight_.insert(weight_.end(), weight, weight + floats);
    momentum_.insert(momentum_.end(), momentum, momentum + floats);
    weight += floats;
    momentum += floats;
    num_rows -= taken;
    next_class_ += taken;
    if (next_class_ < block.first_class + block.num_rows) break;
    const auto bytes = [](const std::vector<float>& values) {
      return rocksdb::Slice(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    };
    const std::string prefix = RowsPrefix(block);
    absl::Status status = Put(RowsKey(block), {prefix, bytes(weight_), bytes(momentum_)});
    if (!status.ok()) return status;
    weight_.clear();
    momentum_.clear();
  }
  return absl::OkStatus();
}

absl::Status RocksWriter::AddRecord(const std::string& name, const std::string& value) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  return Put(RecordKey(name), {value});
}

absl::StatusOr<int64_t> RocksWriter::Commit() {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (next_class_ != end_class()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rows are missing: class ", next_class_, " is next and ", end_class(), " the end"));
  }
  rocksdb::Status flushed = database_->Flush(rocksdb::FlushOptions());
  if (flushed.ok()) flushed = database_->Close();
  database_.reset();
  if (!flushed.ok()) return RocksToStatus(flushed, rows_directory());
  if (absl::Status status = DescribeFiles(); !status.ok()) return status;
  const absl::StatusOr<std::string> text = WriteManifest(manifest_);
  if (!text.ok()) return text.status();
  if (absl::Status status = WriteFile(temporary_ / kManifestName, *text); !status.ok()) return status;
  if (absl::Status status = Publish(); !status.ok()) return status;
  return manifest_.bytes();
}

// Digests are of what the files hold once they are on disk, read back, not of what was meant to be written.
absl::Status RocksWriter::DescribeFiles() {
  const absl::StatusOr<std::vector<fs::path>> files = ListDirectory(rows_directory());
  if (!files.ok()) return files.status();
  for (const fs::path& file : *files) {
    if (absl::Status status = Sync(file); !status.ok()) return status;
    absl::StatusOr<FileDigest> digest = DigestFile(file);
    if (!digest.ok()) return digest.status();
    manifest_.files[file.lexically_relative(temporary_).string()] = *std::move(digest);
  }
  return Sync(rows_directory());
}

absl::Status RocksWriter::Publish() {
  if (absl::Status status = Sync(temporary_); !status.ok()) return status;
  ReachFaultPoint("checkpoint/before_commit");
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    if (errno == EEXIST || errno == ENOTEMPTY) {
      return absl::AlreadyExistsError(absl::StrCat(target_.string(), " exists"));
    }
    return ErrnoToStatus(errno, "create", target_);
  }
  ReachFaultPoint("checkpoint/after_commit");
  if (absl::Status status = Sync(target_.parent_path()); !status.ok()) return status;
  on_commit_();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointWriter>> MakeCheckpointWriter(const fs::path& shard_directory,
                                                                       const CheckpointHeader& header,
                                                                       std::function<void()> on_commit) {
  const fs::path target = shard_directory / header.id.ToString();
  if (std::error_code error; fs::exists(target, error))
    return absl::AlreadyExistsError(absl::StrCat(target.string(), " exists"));
  auto writer = std::make_unique<RocksWriter>(target, header, std::move(on_commit));
  if (absl::Status status = writer->Open(); !status.ok()) return status;
  return writer;
}

}  // namespace ccs
