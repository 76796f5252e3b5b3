#include "server/engine/checkpointing.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/layout.h"

namespace ccs {
namespace {

constexpr int64_t kReadBytes = int64_t{4} << 20;

absl::Status NoStore() { return absl::FailedPreconditionError("this cluster runs without --checkpoint_dir"); }

}  // namespace

Checkpointing::Checkpointing(const EngineOptions& options, const EngineParts& parts, ProgressBoard* progress,
                             std::function<void()> on_written)
    : options_(options),
      backend_(parts.backend),
      store_(parts.checkpoints),
      metrics_(parts.metrics),
      progress_(progress),
      on_written_(std::move(on_written)),
      rows_(backend_, RowsPerBlock(options.spec.dim), options.checkpoint_staging_bytes) {}

Checkpointing::~Checkpointing() { Cancel(); }

absl::Status Checkpointing::Start(uint64_t sequence, const CheckpointId& id, bool kept, Ledger ledger) {
  if (store_ == nullptr) return NoStore();
  const kernels::ShardConfig& shard = backend_->config();
  const CheckpointHeader header = {.id = id,
                                   .index = ledger.index,
                                   .rank = options_.rank,
                                   .num_shards = options_.num_shards,
                                   .class_start = shard.class_start,
                                   .num_local = shard.num_local,
                                   .dim = shard.dim,
                                   .spec = options_.canonical_spec,
                                   .created = absl::Now(),
                                   .kept = kept};
  const std::optional<CheckpointId> base =
      ShouldBuildOnBase() ? std::optional<CheckpointId>(base_->id) : std::nullopt;
  cancelled_ = false;
  outcome_ = {.sequence = sequence, .id = id, .status = {}};
  rows_.Begin(/*everything=*/!base);
  writer_ = std::thread([this, header, base, ledger = std::move(ledger)] { Write(header, base, ledger); });
  return absl::OkStatus();
}

bool Checkpointing::ShouldBuildOnBase() const {
  if (!base_ || 2 * rows_.num_changed() > rows_.num_blocks()) return false;
  const kernels::ShardConfig& shard = backend_->config();
  const auto block_bytes = static_cast<int64_t>(2 * RowsPerBlock(shard.dim) * shard.dim * sizeof(float));
  return base_->bytes + rows_.num_changed() * block_bytes <= 2 * rows_.num_blocks() * block_bytes;
}

Checkpointing::Outcome Checkpointing::Finish() {
  writer_.join();
  rows_.End(/*kept=*/outcome_.status.ok());
  base_.reset();  // after a failure: it may be what could not be built on
  if (outcome_.status.ok()) base_ = {outcome_.id, outcome_.bytes};
  return outcome_;
}

void Checkpointing::Cancel() {
  if (!is_writing()) return;
  cancelled_ = true;
  (void)Finish();
}

absl::Duration Checkpointing::BeforeChange(absl::Span<const int64_t> rows) {
  const absl::Time start = absl::Now();
  rows_.BeforeChange(rows);
  return absl::Now() - start;
}

void Checkpointing::Write(const CheckpointHeader& header, const std::optional<CheckpointId>& base,
                          const Ledger& ledger) {
  const absl::Time start = absl::Now();
  const absl::StatusOr<CheckpointSize> size = WriteBlocks(header, base, ledger);
  rows_.Abandon();
  outcome_.status = size.status();
  if (size.ok()) {
    outcome_.bytes = size->bytes;
    const absl::Duration took = absl::Now() - start;
    metrics_->CheckpointWritten(took, size->bytes, size->new_bytes);
    spdlog::info("checkpoint {} written: {} bytes, {} of them new, in {}", header.id.ToString(), size->bytes,
                 size->new_bytes, absl::FormatDuration(took));
  } else if (!cancelled_) {
    metrics_->CheckpointFailed();
    spdlog::error("checkpoint {} failed: {}", header.id.ToString(), size.status().ToString());
  }
  on_written_();
}

absl::StatusOr<CheckpointSize> Checkpointing::WriteBlocks(const CheckpointHeader& header,
                                                          const std::optional<CheckpointId>& base,
                                                          const Ledger& ledger) {
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> writer = store_->Create(header, base);
  if (!writer.ok()) return writer.status();
  RowPiece piece;
  while (true) {
    if (cancelled_) return absl::CancelledError("the group has to form again");
    if (absl::Status status = rows_.Take(&piece); !status.ok()) return status;
    if (piece.num_rows == 0) break;
    absl::Status status = (*writer)->AddRows(header.class_start + piece.first_row, piece.num_rows,
                                             piece.weight.data(), piece.momentum.data());
    if (!status.ok()) return status;
    progress_->Advance();
  }
  absl::Status status = (*writer)->AddRecord(Ledger::kRecordName, ledger.ToRecord());
  if (!status.ok()) return status;
  return (*writer)->Commit();
}

absl::Status Checkpointing::CheckHeader(const CheckpointHeader& header) const {
  const kernels::ShardConfig& shard = backend_->config();
  const auto mismatch = [&](const auto&... parts) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint ", header.id.ToString(), " ", parts...));
  };
  const bool own = header.num_shards == options_.num_shards;
  if (own && header.rank != options_.rank) {
    return mismatch("is of rank ", header.rank, ", this is ", options_.rank);
  }
  if (header.spec != options_.canonical_spec) {
    return mismatch("is of the spec {", header.spec, "}, this cluster trains {", options_.canonical_spec,
                    "}");
  }
  // Of another number of shards, a reader has all classes.
  const ClassRange wanted =
      own ? ClassRange{shard.class_start, shard.num_local} : ClassRange{0, options_.spec.num_classes};
  if (header.class_start != wanted.start || header.num_local != wanted.count || header.dim != shard.dim) {
    return mismatch("holds ", header.num_local, " classes from ", header.class_start, " of width ",
                    header.dim, ", this ", own ? "shard " : "cluster ", wanted.count, " from ", wanted.start,
                    " of width ", shard.dim);
  }
  return absl::OkStatus();
}

absl::Status Checkpointing::Restore(const CheckpointId& id, Ledger* ledger) {
  if (store_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", id.ToString(), " is to be restored, but there is no --checkpoint_dir"));
  }
  absl::StatusOr<std::unique_ptr<CheckpointReader>> reader = store_->Open(id);
  if (!reader.ok()) return reader.status();
  if (absl::Status status = CheckHeader((*reader)->header()); !status.ok()) return status;
  const kernels::ShardConfig& shard = backend_->config();
  if (const int written_by = (*reader)->header().num_shards; written_by != options_.num_shards) {
    spdlog::info(
        "checkpoint {} was written by {} shards, this cluster has {}: reading classes [{}, {}) of it",
        id.ToString(), written_by, options_.num_shards, shard.class_start,
        shard.class_start + shard.num_local);
  }
  if (absl::Status status = RestoreRows(**reader); !status.ok()) return status;
  const auto records = (*reader)->ReadRecords();
  if (!records.ok()) return records.status();
  for (const auto& [name, value] : *records) {
    if (name != Ledger::kRecordName) continue;
    absl::StatusOr<Ledger> restored = Ledger::FromRecord(value);
    if (!restored.ok()) return restored.status();
    *ledger = *std::move(restored);
    // Replies are those of the shard that gave them.
    if ((*reader)->header().num_shards != options_.num_shards) ledger->answers.clear();
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("checkpoint ", id.ToString(), " has no ledger"));
}

absl::Status Checkpointing::RestoreRows(CheckpointReader& reader) {
  const kernels::ShardConfig& shard = backend_->config();
  base_.reset();
  rows_.SetAllChanged(true);
  const auto row_bytes = static_cast<int64_t>(shard.dim * sizeof(float));
  const int64_t block = std::max<int64_t>(1, kReadBytes / row_bytes);
  std::vector<float> weight(std::min(block, shard.num_local) * shard.dim);
  std::vector<float> momentum(weight.size());
  for (int64_t row = 0; row < shard.num_local; row += block) {
    const int64_t rows = std::min(block, shard.num_local - row);
    absl::Status status = reader.ReadRows(shard.class_start + row, rows, weight.data(), momentum.data());
    if (status.ok()) status = backend_->WriteRows(row, rows, weight.data(), momentum.data());
    if (!status.ok()) return status;
    progress_->Advance();
  }
  if (reader.header().num_shards != options_.num_shards) return absl::OkStatus();
  const absl::StatusOr<std::vector<StoredCheckpoint>> stored = store_->List();
  if (!stored.ok()) return stored.status();
  for (const StoredCheckpoint& checkpoint : *stored) {
    if (checkpoint.header.id != reader.header().id) continue;
    base_ = {checkpoint.header.id, checkpoint.bytes};
    rows_.SetAllChanged(false);
  }
  return absl::OkStatus();
}

absl::Status Checkpointing::Initialise() {
  base_.reset();
  rows_.SetAllChanged(true);
  return backend_->InitialiseRows();
}

absl::StatusOr<Position> Checkpointing::Prune(const CheckpointId& newest) {
  if (store_ == nullptr) return NoStore();
  const absl::StatusOr<std::vector<StoredCheckpoint>> left = store_->Prune(newest, options_.keep_checkpoints);
  if (!left.ok()) return left.status();
  std::optional<Position> oldest;
  for (const StoredCheckpoint& checkpoint : *left) {
    const CheckpointHeader& header = checkpoint.header;
    if (header.id.lineage == newest.lineage) oldest = {newest.lineage, header.id.step, header.index};
  }
  if (!oldest) return absl::DataLossError(absl::StrCat("checkpoint ", newest.ToString(), " is gone"));
  return *oldest;
}

absl::Status Checkpointing::Release(const CheckpointId& id) {
  return store_ == nullptr ? NoStore() : store_->Release(id);
}

}  // namespace ccs
