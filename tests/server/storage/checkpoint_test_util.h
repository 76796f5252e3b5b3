// What the tests of the checkpoint store share: a directory, and checkpoints whose every value is known.
#ifndef CCS_TESTS_SERVER_STORAGE_CHECKPOINT_TEST_UTIL_H_
#define CCS_TESTS_SERVER_STORAGE_CHECKPOINT_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/engine/layout.h"
#include "server/storage/checkpoint_store.h"

namespace ccs {

// A new directory, removed at the end. In memory where possible: waiting for a disk tests nothing here.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const char* memory = "/dev/shm/";
    std::string name = std::filesystem::is_directory(memory) ? memory : ::testing::TempDir();
    name += "ccs-storage-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline constexpr int kRank = 1;
inline constexpr int kNumShards = 3;

// Three rows a block: the range begins and ends within blocks.
inline CheckpointHeader SmallHeader(const CheckpointId& id) {
  return {.id = id,
          .rank = kRank,
          .num_shards = kNumShards,
          .class_start = 700,
          .num_local = 1501,
          .dim = 170,
          .spec = "num_classes: 4500\nname: \"\xc3\xa9\"",
          .created = absl::FromUnixNanos(1'700'000'000'123'456'789)};
}

// Every bit pattern that a float may have turns up sooner or later, NaNs with payloads among them.
inline float WeightOf(int64_t row, int column) {
  return std::bit_cast<float>(static_cast<uint32_t>((row * 1000 + column) * 2654435761u));
}
inline float MomentumOf(int64_t row, int column) { return WeightOf(row + 1'000'000, column); }

struct Rows {
  std::vector<float> weight;
  std::vector<float> momentum;
};

inline Rows MakeRows(int64_t first_class, int64_t num_rows, int dim) {
  Rows rows;
  for (int64_t row = first_class; row < first_class + num_rows; ++row) {
    for (int column = 0; column < dim; ++column) {
      rows.weight.push_back(WeightOf(row, column));
      rows.momentum.push_back(MomentumOf(row, column));
    }
  }
  return rows;
}

inline absl::Status AddRows(CheckpointWriter& writer, int64_t first_class, int64_t num_rows, int dim) {
  const Rows rows = MakeRows(first_class, num_rows, dim);
  return writer.AddRows(first_class, num_rows, rows.weight.data(), rows.momentum.data());
}

inline std::unique_ptr<CheckpointStore> OpenStore(const std::filesystem::path& directory) {
  auto store = OpenCheckpointStore(directory, kRank, kNumShards);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// A whole checkpoint with one record.
inline absl::StatusOr<CheckpointSize> Save(CheckpointStore& store, const CheckpointId& id) {
  const CheckpointHeader header = SmallHeader(id);
  auto writer = store.Create(header);
  if (!writer.ok()) return writer.status();
  absl::Status status = AddRows(**writer, header.class_start, header.num_local, header.dim);
  if (status.ok()) status = (*writer)->AddRecord("ledger", "run 7");
  if (!status.ok()) return status;
  return (*writer)->Commit();
}

inline std::vector<std::string> ListIds(CheckpointStore& store) {
  std::vector<std::string> ids;
  const auto list = store.List();
  EXPECT_TRUE(list.ok()) << list.status();
  if (list.ok()) {
    for (const StoredCheckpoint& stored : *list) ids.push_back(stored.header.id.ToString());
  }
  return ids;
}

// Six rows a block: ranges of a few classes begin and end within blocks, and reach over several.
inline constexpr int kSixRowsDim = 85;

// All parts of a checkpoint by `num_shards` shards.
inline void SaveWhole(const std::filesystem::path& directory, const CheckpointId& id, int num_shards,
                      int64_t num_classes, const std::string& spec = "the spec") {
  for (int rank = 0; rank < num_shards; ++rank) {
    const ClassRange range = ClassRangeOf(num_classes, num_shards, rank);
    const auto store = OpenCheckpointStore(directory, rank, num_shards);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto writer = (*store)->Create({.id = id,
                                          .rank = rank,
                                          .num_shards = num_shards,
                                          .class_start = range.start,
                                          .num_local = range.count,
                                          .dim = kSixRowsDim,
                                          .spec = spec,
                                          .created = absl::FromUnixSeconds(1'700'000'000)});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(AddRows(**writer, range.start, range.count, kSixRowsDim).ok());
    ASSERT_TRUE((*writer)->AddRecord("ledger", "run 7").ok());
    const auto bytes = (*writer)->Commit();
    ASSERT_TRUE(bytes.ok()) << bytes.status();
  }
}

// Bits, since NaN != NaN.
inline void ExpectRows(CheckpointReader& reader, int64_t first_class, int64_t num_rows) {
  const int dim = reader.header().dim;
  const Rows expected = MakeRows(first_class, num_rows, dim);
  Rows got{std::vector<float>(num_rows * dim), std::vector<float>(num_rows * dim)};
  const absl::Status status = reader.ReadRows(first_class, num_rows, got.weight.data(), got.momentum.data());
  ASSERT_TRUE(status.ok()) << status;
  if (num_rows == 0) return;
  const size_t bytes = got.weight.size() * sizeof(float);
  EXPECT_EQ(std::memcmp(got.weight.data(), expected.weight.data(), bytes), 0) << first_class;
  EXPECT_EQ(std::memcmp(got.momentum.data(), expected.momentum.data(), bytes), 0) << first_class;
}

inline void FlipBit(const std::filesystem::path& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char flipped = static_cast<char>(file.get() ^ 1);
  file.seekp(offset);
  file.put(flipped);
}

// The file that holds a checkpoint's rows.
inline std::filesystem::path TableOf(const std::filesystem::path& checkpoint) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".sst") return entry.path();
  }
  ADD_FAILURE() << "no table below " << checkpoint;
  return {};
}

inline std::filesystem::path ShardDirectory(const std::filesystem::path& directory) {
  return directory / "shard-1-of-3";
}

}  // namespace ccs

#endif  // CCS_TESTS_SERVER_STORAGE_CHECKPOINT_TEST_UTIL_H_
