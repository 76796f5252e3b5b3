#include "server/storage/checkpoint_mirror.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "server/storage/checkpoint_files.h"
#include "server/storage/status_util.h"
#include "spdlog/spdlog.h"

namespace ccs {

absl::StatusOr<std::unique_ptr<CheckpointMirror>> CheckpointMirror::Open(CheckpointMirrorOptions options) {
  const std::filesystem::path folder = options.mirror_dir / PartFolderName(options.rank, options.num_shards);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoToStatus(error.value(), "create", folder);
  if (absl::Status status = ClearLeftovers(folder); !status.ok()) return status;
  return std::unique_ptr<CheckpointMirror>(new CheckpointMirror(std::move(options)));
}

CheckpointMirror::CheckpointMirror(CheckpointMirrorOptions options)
    : options_(std::move(options)),
      source_(options_.checkpoint_dir, options_.rank, options_.num_shards),
      mirror_(options_.mirror_dir, options_.rank, options_.num_shards),
      thread_([this] { Loop(); }) {}

CheckpointMirror::~CheckpointMirror() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointMirror::Offer(const CheckpointId& id) {
  std::lock_guard lock(mutex_);
  offered_ = id;
  changed_.notify_all();
}

void CheckpointMirror::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return offered_ || stopping_; });
    if (!offered_) return;
    const CheckpointId id = *std::exchange(offered_, std::nullopt);
    lock.unlock();
    const absl::Time start = absl::Now();
    const absl::Status status = Copy(id);
    if (status.ok()) {
      spdlog::info("checkpoint {} is in the mirror {}, in {}", id.ToString(), mirror_.path().string(),
                   absl::FormatDuration(absl::Now() - start));
    } else {
      spdlog::error("checkpoint {} is not in the mirror {}: {}", id.ToString(), mirror_.path().string(),
                    status.ToString());
    }
    if (options_.on_copied) options_.on_copied(status);
    lock.lock();
  }
}

absl::Status CheckpointMirror::Copy(const CheckpointId& id) {
  if (absl::Status status = CopyCheckpoint(source_, mirror_, id); !status.ok()) return status;
  return Prune(id);
}

absl::Status CheckpointMirror::Prune(const CheckpointId& newest) {
  absl::StatusOr<std::vector<CheckpointId>> ids = mirror_.Ids();
  if (!ids.ok()) return ids.status();
  std::sort(ids->rbegin(), ids->rend());
  int kept = 0;
  for (const CheckpointId& id : *ids) {
    if (id > newest || kept++ < std::max(options_.keep, 1) || IsKept(mirror_.PathOf(id))) continue;
    if (absl::Status status = RemoveCheckpoint(mirror_, id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ccs
