#include "server/engine/row_snapshot.h"

#include <algorithm>
#include <utility>

namespace ccs {
namespace {

// Copied while changes wait: a fraction of a millisecond.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

}  // namespace

RowSnapshot::RowSnapshot(kernels::ShardBackend* backend, int64_t rows_per_block, int64_t staging_bytes)
    : backend_(backend),
      class_start_(backend->config().class_start),
      rows_per_block_(rows_per_block),
      first_block_(class_start_ / rows_per_block),
      staging_bytes_(staging_bytes) {
  const int64_t rows = backend->config().num_local;
  const int64_t blocks = rows == 0 ? 0 : BlockOfRow(rows - 1) + 1;
  changed_.resize(blocks);
  in_snapshot_.resize(blocks);
  blocks_.resize(blocks);
  SetAllChanged(true);
}

int64_t RowSnapshot::FirstRow(int64_t block) const {
  const int64_t row = (first_block_ + block) * rows_per_block_ - class_start_;
  return std::clamp<int64_t>(row, 0, backend_->config().num_local);
}

int64_t RowSnapshot::Bytes(int64_t num_rows) const {
  return num_rows * 2 * backend_->config().dim * static_cast<int64_t>(sizeof(float));
}

void RowSnapshot::SetAllChanged(bool changed) {
  std::fill(changed_.begin(), changed_.end(), changed);
  num_changed_ = changed ? num_blocks() : 0;
}

void RowSnapshot::Begin(bool everything) {
  in_snapshot_ = changed_;
  if (everything) std::fill(in_snapshot_.begin(), in_snapshot_.end(), true);
  SetAllChanged(false);
  open_ = true;
  std::lock_guard lock(mutex_);
  std::transform(in_snapshot_.begin(), in_snapshot_.end(), blocks_.begin(),
                 [](bool wanted) { return wanted ? Block::kPending : Block::kNotWanted; });
  cursor_ = 0;
  staged_.clear();
  staged_bytes_ = taken_bytes_ = 0;
  failed_ = absl::OkStatus();
}

void RowSnapshot::End(bool kept) {
  open_ = false;
  Abandon();
  if (kept) return;
  for (int64_t block = 0; block < num_blocks(); ++block) {
    if (!in_snapshot_[block] || changed_[block]) continue;
    changed_[block] = true;
    ++num_changed_;
  }
}

void RowSnapshot::BeforeChange(absl::Span<const int64_t> rows) {
  for (const int64_t row : rows) {
    const int64_t block = BlockOfRow(row);
    if (changed_[block]) continue;
    changed_[block] = true;
    ++num_changed_;
  }
  if (!open_) return;
  std::unique_lock lock(mutex_);
  for (const int64_t row : rows) {
    const int64_t block = BlockOfRow(row);
    const int64_t bytes = Bytes(FirstRow(block + 1) - FirstRow(block));
    room_.wait(lock, [&] {
      return blocks_[block] != Block::kPending || staged_bytes_ == 0 ||
             staged_bytes_ + bytes <= staging_bytes_;
    });
    if (blocks_[block] == Block::kPending) Stage(block);
  }
}

void RowSnapshot::Stage(int64_t block) {
  RowPiece piece;
  absl::Status status = Copy(FirstRow(block), FirstRow(block + 1), &piece);
  if (!status.ok()) failed_ = std::move(status);
  staged_bytes_ += Bytes(piece.num_rows);
  staged_.push_back(std::move(piece));
  blocks_[block] = Block::kStaged;
}

absl::Status RowSnapshot::Copy(int64_t first_row, int64_t end_row, RowPiece* piece) const {
  const size_t floats = (end_row - first_row) * backend_->config().dim;
  piece->first_row = first_row;
  piece->num_rows = end_row - first_row;
  piece->weight.resize(floats);
  piece->momentum.resize(floats);
  return backend_->ReadRows(first_row, piece->num_rows, piece->weight.data(), piece->momentum.data());
}

absl::Status RowSnapshot::Take(RowPiece* piece) {
  std::lock_guard lock(mutex_);
  staged_bytes_ -= std::exchange(taken_bytes_, 0);
  room_.notify_all();
  if (!failed_.ok()) return failed_;
  if (!staged_.empty()) {
    *piece = std::move(staged_.front());
    staged_.pop_front();
    taken_bytes_ = Bytes(piece->num_rows);
    return absl::OkStatus();
  }
  const auto first = std::find(blocks_.begin() + cursor_, blocks_.end(), Block::kPending);
  const auto most = std::max<int64_t>(1, kPieceBytes / Bytes(rows_per_block_));
  const auto limit = blocks_.end() - first <= most ? blocks_.end() : first + most;
  const auto end = std::find_if(first, limit, [](Block block) { return block != Block::kPending; });
  std::fill(first, end, Block::kNotWanted);
  cursor_ = end - blocks_.begin();
  return Copy(FirstRow(first - blocks_.begin()), FirstRow(cursor_), piece);
}

void RowSnapshot::Abandon() {
  std::lock_guard lock(mutex_);
  std::fill(blocks_.begin(), blocks_.end(), Block::kNotWanted);
  staged_.clear();
  staged_bytes_ = taken_bytes_ = 0;
  room_.notify_all();
}

}  // namespace ccs
