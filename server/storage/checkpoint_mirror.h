// Copies of a shard's checkpoints in a second place, made in the background.
#ifndef CCS_SERVER_STORAGE_CHECKPOINT_MIRROR_H_
#define CCS_SERVER_STORAGE_CHECKPOINT_MIRROR_H_

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "server/storage/checkpoint_store.h"
#include "server/storage/part_folder.h"

namespace ccs {

struct CheckpointMirrorOptions {
  std::filesystem::path checkpoint_dir;
  std::filesystem::path mirror_dir;  // laid out like a checkpoint_dir, and usable as one
  int rank = 0;
  int num_shards = 1;
  int keep = 3;  // checkpoints there, besides those that stay until they are released
  // Called on the mirror's thread after each attempt.
  std::function<void(const absl::Status&)> on_copied;
};

// Thread-safe. One thread copies, the newest checkpoint offered first; those offered while it is busy and no
// longer the newest are left out. A failure is logged and the next one tried: the mirror is never in
// training's way.
class CheckpointMirror {
 public:
  // Creates the folder and clears half-made copies; an error if that cannot be done.
  static absl::StatusOr<std::unique_ptr<CheckpointMirror>> Open(CheckpointMirrorOptions options);
  // Finishes the copy that it is at and the newest one offered.
  ~CheckpointMirror();

  // A checkpoint of checkpoint_dir is whole on every shard.
  void Offer(const CheckpointId& id);

 private:
  explicit CheckpointMirror(CheckpointMirrorOptions options);
  void Loop();
  absl::Status Copy(const CheckpointId& id);
  absl::Status Prune(const CheckpointId& newest);

  const CheckpointMirrorOptions options_;
  // The thread's.
  PartFolder source_;
  PartFolder mirror_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CheckpointId> offered_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ccs

#endif  // CCS_SERVER_STORAGE_CHECKPOINT_MIRROR_H_
