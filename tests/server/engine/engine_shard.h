// One shard without its coordinator, whose part the test plays.
#ifndef CCS_TESTS_SERVER_ENGINE_ENGINE_SHARD_H_
#define CCS_TESTS_SERVER_ENGINE_ENGINE_SHARD_H_

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "server/engine/layout.h"
#include "server/engine/slice_digest.h"
#include "tests/server/engine/fake_backend.h"
#include "tests/server/engine/recording_control_plane.h"
#include "tests/testing/in_process_collective.h"
#include "tests/testing/memory_checkpoint_store.h"
#include "tests/testing/memory_step_log.h"

namespace ccs::testing {

inline constexpr int kDim = 2;
inline constexpr uint64_t kLineage = 3;

// The result of a callback, for a thread that waits.
template <typename T>
class Awaited {
 public:
  std::function<void(absl::StatusOr<T>)> done() {
    return [promise = promise_](absl::StatusOr<T> value) { promise->set_value(std::move(value)); };
  }
  absl::StatusOr<T> Get() { return promise_->get_future().get(); }

 private:
  std::shared_ptr<std::promise<absl::StatusOr<T>>> promise_ =
      std::make_shared<std::promise<absl::StatusOr<T>>>();
};

using StepReply = std::shared_ptr<const SliceReply>;

// Six classes of width 2 over all shards.
struct EngineShard {
  EngineShard(int rank, int num_shards, std::unique_ptr<Collective> collective,
              FakeBackend::Hook hook = nullptr, bool with_store = true) {
    // Makes the logger before there are threads, as a server's main does.
    spdlog::set_level(spdlog::level::off);
    options.rank = rank;
    options.num_shards = num_shards;
    options.spec.num_classes = 6;
    options.spec.dim = kDim;
    options.spec.max_batch = 8;
    options.canonical_spec = "the spec";
    const ClassRange range = ClassRangeOf(6, num_shards, rank);
    kernels::ShardConfig config;
    config.class_start = range.start;
    config.num_local = range.count;
    config.dim = kDim;
    config.num_shards = num_shards;
    config.max_batch = 8;
    backend = std::make_unique<FakeBackend>(config, std::move(hook));
    assembler = std::make_unique<StepAssembler>(rank, num_shards, &control);
    next_collective = std::move(collective);
    parts.backend = backend.get();
    parts.assembler = assembler.get();
    parts.staged_writes = &staged;
    if (with_store) parts.checkpoints = &store;
    parts.control = &control;
    parts.metrics = &metrics;
    parts.make_collective = [this](absl::Time,
                                   const Rendezvous&) -> absl::StatusOr<std::unique_ptr<Collective>> {
      if (next_collective == nullptr) return absl::UnavailableError("no peers");
      return std::move(next_collective);
    };
  }

  void Start(std::optional<CheckpointId> checkpoint = std::nullopt, int num_trainers = 1) {
    if (engine == nullptr) engine = std::make_unique<Engine>(options, parts);
    engine->StartEpoch({.epoch = 1, .lineage = kLineage, .origin = {checkpoint, {}}}, nullptr);
    control.WaitFormed(starts++);
    assembler->StartEpoch({kLineage, checkpoint ? checkpoint->step : 0});
    assembler->SetRun({"run", std::vector<uint64_t>(num_trainers, 1)});
  }

  void EndEpoch() {
    assembler->EndEpoch(absl::CancelledError("the test ends the epoch"));
    engine->EndEpoch(absl::CancelledError("the test ends the epoch"));
  }

  Awaited<StepReply> Submit(int trainer, int64_t step, std::vector<int64_t> labels, float value,
                            StepParams params = {.learning_rate = 0.5f, .scale = {}, .margin = {}}) {
    Slice slice;
    slice.run_id = "run";
    slice.incarnation = 1;
    slice.lineage = kLineage;
    slice.trainer_rank = trainer;
    slice.step = step;
    slice.params = params;
    slice.gradient_scale = static_cast<float>(trainer + 1);
    slice.features.assign(labels.size() * kDim, value);
    slice.labels = std::move(labels);
    slice.digest = SliceDigest(slice);
    Awaited<StepReply> reply;
    assembler->Submit(std::move(slice), reply.done());
    return reply;
  }

  void Go(int64_t step, std::vector<int> rows_per_rank, std::vector<int> trainers,
          std::optional<CheckpointId> checkpoint = std::nullopt) {
    StepOperation operation;
    operation.step = step;
    operation.params.learning_rate = 0.5f;
    operation.rows_per_rank = std::move(rows_per_rank);
    for (const int trainer : trainers) operation.slices.push_back({trainer, 1});
    operation.checkpoint = checkpoint;
    ASSERT_TRUE(assembler->ChooseSlices(operation).ok());
    engine->Enqueue(100 + step, operation);
  }

  CentreRows Centres(std::vector<int64_t> ids) {
    Awaited<CentreRows> rows;
    engine->ReadCentres(std::move(ids), true, rows.done());
    return rows.Get().value();
  }

  size_t starts = 0;
  EngineOptions options;
  EngineParts parts;
  RecordingControlPlane control;
  MemoryCheckpointStore store;
  MemoryStepLog log;  // for parts.log
  StagedWrites staged{kDim, 1 << 20};
  Metrics metrics{BuildAndSpec{}};
  std::unique_ptr<Collective> next_collective;
  std::unique_ptr<FakeBackend> backend;
  std::unique_ptr<StepAssembler> assembler;
  std::unique_ptr<Engine> engine;  // last: it goes first
};

inline std::unique_ptr<EngineShard> OneShard(FakeBackend::Hook hook = nullptr, bool with_store = true) {
  return std::make_unique<EngineShard>(0, 1, std::move(MakeInProcessCollectives(1)[0]), std::move(hook),
                                       with_store);
}

}  // namespace ccs::testing

#endif  // CCS_TESTS_SERVER_ENGINE_ENGINE_SHARD_H_
