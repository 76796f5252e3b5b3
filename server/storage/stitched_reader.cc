#include "server/storage/stitched_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/storage/checkpoint_reader.h"

namespace ccs {
namespace {

class StitchedReader : public CheckpointReader {
 public:
  explicit StitchedReader(std::vector<CheckpointPart> parts) {
    header_ = parts.front().manifest.header;
    const CheckpointHeader& last = parts.back().manifest.header;
    header_.num_local = last.class_start + last.num_local;
    for (CheckpointPart& part : parts) parts_.push_back({std::move(part), nullptr});
  }

  const CheckpointHeader& header() const override { return header_; }
  absl::Status ReadRows(int64_t first_class, int64_t num_rows, float* weight, float* momentum) override;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadRecords() override {
    if (absl::Status status = Open(parts_.front()); !status.ok()) return status;
    return parts_.front().reader->ReadRecords();
  }

 private:
  struct Part {
    CheckpointPart files;
    std::unique_ptr<CheckpointReader> reader;  // once it is needed
  };

  static absl::Status Open(Part& part) {
    if (part.reader != nullptr) return absl::OkStatus();
    auto reader = MakeCheckpointReader(part.files.directory, part.files.manifest);
    if (!reader.ok()) return reader.status();
    part.reader = *std::move(reader);
    return absl::OkStatus();
  }
  static absl::Status Compare(CheckpointPart& part) {
    if (part.compared) return absl::OkStatus();
    absl::Status status = CheckFiles(part.directory, part.manifest, /*deep=*/true);
    part.compared = status.ok();
    return status;
  }

  CheckpointHeader header_;
  std::vector<Part> parts_;
};

absl::Status StitchedReader::ReadRows(int64_t first_class, int64_t num_rows, float* weight, float* momentum) {
  if (num_rows < 0 || first_class < 0 || first_class > header_.num_local ||
      num_rows > header_.num_local - first_class) {
    return absl::InvalidArgumentError(absl::StrCat(num_rows, " rows from class ", first_class,
                                                   " of a checkpoint of ", header_.num_local, " classes"));
  }
  for (Part& part : parts_) {
    const CheckpointHeader& range = part.files.manifest.header;
    const int64_t start = std::max(first_class, range.class_start);
    const int64_t end = std::min(first_class + num_rows, range.class_start + range.num_local);
    if (start >= end) continue;
    absl::Status status = Compare(part.files);
    if (status.ok()) status = Open(part);
    const int64_t offset = (start - first_class) * header_.dim;
    if (status.ok()) status = part.reader->ReadRows(start, end - start, weight + offset, momentum + offset);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<CheckpointReader> MakeStitchedReader(std::vector<CheckpointPart> parts) {
  return std::make_unique<StitchedReader>(std::move(parts));
}

}  // namespace ccs
