#include "server/engine/checkpointing.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/layout.h"
#include "server/fault_point.h"

namespace ccs {
namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;

}  // namespace

Checkpointing::Checkpointing(const EngineOptions& options, const EngineParts& parts, ProgressBoard* progress)
    : options_(options),
      backend_(parts.backend),
      store_(parts.checkpoints),
      metrics_(parts.metrics),
      progress_(progress) {}

int64_t Checkpointing::RowsPerBlock() const {
  const auto row_bytes = static_cast<int64_t>(options_.spec.dim * sizeof(float));
  return std::clamp<int64_t>(kBlockBytes / row_bytes, 1, std::max<int64_t>(1, backend_->config().num_local));
}

absl::StatusOr<int64_t> Checkpointing::Write(const CheckpointId& id, const Ledger& ledger) {
  progress_->SetActivity("checkpoint");
  const absl::Time start = absl::Now();
  absl::StatusOr<int64_t> bytes = WriteBlocks(id, ledger);
  if (!bytes.ok()) {
    metrics_->CheckpointFailed();
    spdlog::error("checkpoint {} failed: {}", id.ToString(), bytes.status().ToString());
    return bytes;
  }
  const absl::Duration took = absl::Now() - start;
  metrics_->CheckpointWritten(took, *bytes);
  spdlog::info("checkpoint {} written: {} bytes in {}", id.ToString(), *bytes, absl::FormatDuration(took));
  return bytes;
}

absl::StatusOr<int64_t> Checkpointing::WriteBlocks(const CheckpointId& id, const Ledger& ledger) {
  if (store_ == nullptr) {
    return absl::FailedPreconditionError("this cluster runs without --checkpoint_dir");
  }
  const kernels::ShardConfig& shard = backend_->config();
  const CheckpointHeader header = {.id = id,
                                   .index = ledger.index,
                                   .rank = options_.rank,
                                   .num_shards = options_.num_shards,
                                   .class_start = shard.class_start,
                                   .num_local = shard.num_local,
                                   .dim = shard.dim,
                                   .spec = options_.canonical_spec,
                                   .created = absl::Now()};
  absl::StatusOr<std::unique_ptr<CheckpointWriter>> writer = store_->Create(header);
  if (!writer.ok()) return writer.status();
  const int64_t block = RowsPerBlock();
  weight_.resize(block * shard.dim);
  momentum_.resize(block * shard.dim);
  for (int64_t row = 0; row < shard.num_local; row += block) {
    const int64_t rows = std::min(block, shard.num_local - row);
    absl::Status status = backend_->ReadRows(row, rows, weight_.data(), momentum_.data());
    if (status.ok()) {
      status = (*writer)->AddRows(shard.class_start + row, rows, weight_.data(), momentum_.data());
    }
    ReachFaultPoint("checkpoint/block");
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
  const int64_t block = RowsPerBlock();
  weight_.resize(block * shard.dim);
  momentum_.resize(block * shard.dim);
  for (int64_t row = 0; row < shard.num_local; row += block) {
    const int64_t rows = std::min(block, shard.num_local - row);
    absl::Status status =
        (*reader)->ReadRows(shard.class_start + row, rows, weight_.data(), momentum_.data());
    if (status.ok()) status = backend_->WriteRows(row, rows, weight_.data(), momentum_.data());
    if (!status.ok()) return status;
    progress_->Advance();
  }
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

absl::StatusOr<Position> Checkpointing::Prune(const CheckpointId& newest) {
  if (store_ == nullptr) return absl::FailedPreconditionError("there is no --checkpoint_dir");
  if (absl::Status status = store_->Prune(newest, options_.keep_checkpoints); !status.ok()) return status;
  const absl::StatusOr<std::vector<StoredCheckpoint>> left = store_->List();
  if (!left.ok()) return left.status();
  for (const StoredCheckpoint& checkpoint : *left) {
    const CheckpointHeader& header = checkpoint.header;
    if (header.num_shards != options_.num_shards || header.id.lineage != newest.lineage) continue;
    return Position{header.id.lineage, header.id.step, header.index};
  }
  return absl::DataLossError(absl::StrCat("checkpoint ", newest.ToString(), " is gone"));
}

}  // namespace ccs
