// A file system under RocksDB that fails when told to and knows what has been synced. Must be survived: any
// write or sync that fails, a full disk, a power failure that leaves of each file what was synced.
#ifndef CCS_TESTS_SERVER_STORAGE_FAULTY_FILE_SYSTEM_H_
#define CCS_TESTS_SERVER_STORAGE_FAULTY_FILE_SYSTEM_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "rocksdb/file_system.h"

namespace ccs {

enum class Operation { kWrite, kSync };

class FaultyFileSystem : public rocksdb::FileSystemWrapper {
 public:
  FaultyFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FaultyFileSystem"; }

  // From now on `operation` on files of this extension gives `failure`, which may be OK.
  void Fail(Operation operation, const std::string& extension, const rocksdb::IOStatus& failure) {
    std::lock_guard lock(mutex_);
    failures_[{operation, extension}] = failure;
  }

  // What a power failure now would leave of the files directly in `from`.
  void CopySynced(const std::filesystem::path& from, const std::filesystem::path& to) {
    std::lock_guard lock(mutex_);
    std::filesystem::create_directories(to);
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      const std::filesystem::path copy = to / entry.path().filename();
      std::filesystem::copy_file(entry.path(), copy);
      const auto known = synced_.find(entry.path().string());
      if (known != synced_.end()) std::filesystem::resize_file(copy, known->second);
    }
  }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    std::unique_ptr<rocksdb::FSWritableFile> real;
    rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(name, options, &real, debug);
    if (!status.ok()) return status;
    std::lock_guard lock(mutex_);
    synced_[name] = 0;
    *file = std::make_unique<File>(std::move(real), name, this);
    return status;
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    std::lock_guard lock(mutex_);
    if (auto moved = synced_.extract(from); !moved.empty()) synced_[to] = moved.mapped();
    return FileSystemWrapper::RenameFile(from, to, options, debug);
  }

 private:
  class File : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(std::unique_ptr<rocksdb::FSWritableFile> real, std::string name, FaultyFileSystem* system)
        : FSWritableFileOwnerWrapper(std::move(real)), name_(std::move(name)), system_(system) {}
    using FSWritableFileOwnerWrapper::Append;
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override {
      rocksdb::IOStatus failure = system_->FailureOf(Operation::kWrite, name_);
      return failure.ok() ? FSWritableFileOwnerWrapper::Append(data, options, debug) : failure;
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
      rocksdb::IOStatus status = system_->FailureOf(Operation::kSync, name_);
      if (status.ok()) status = FSWritableFileOwnerWrapper::Sync(options, debug);
      if (status.ok()) system_->Synced(name_);
      return status;
    }
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
      return Sync(options, debug);
    }

   private:
    const std::string name_;
    FaultyFileSystem* const system_;
  };

  rocksdb::IOStatus FailureOf(Operation operation, const std::string& name) {
    std::lock_guard lock(mutex_);
    const auto found = failures_.find({operation, std::filesystem::path(name).extension().string()});
    return found == failures_.end() ? rocksdb::IOStatus::OK() : found->second;
  }
  void Synced(const std::string& name) {
    std::lock_guard lock(mutex_);
    synced_[name] = std::filesystem::file_size(name);
  }

  std::mutex mutex_;
  std::map<std::pair<Operation, std::string>, rocksdb::IOStatus> failures_;
  std::map<std::string, uint64_t> synced_;  // bytes, by path
};

}  // namespace ccs

#endif  // CCS_TESTS_SERVER_STORAGE_FAULTY_FILE_SYSTEM_H_
