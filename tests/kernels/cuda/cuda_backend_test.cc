// What only the CUDA backend refuses, its memory, its faults, and that no order of its threads matters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/factory.h"
#include "kernels/random.h"
#include "tests/kernels/backend_cluster.h"
#include "tests/kernels/cuda/emulation/device.h"
#include "tests/kernels/refusals.h"
#include "tests/kernels/step_agreement.h"

namespace ccs::kernels {
namespace {

using ::testing::HasSubstr;

class CudaBackendTest : public ::testing::Test {
 protected:
  ~CudaBackendTest() override { emulation::TheDevice() = emulation::Device(); }

  static void ExpectNotMade(absl::StatusCode code, const std::string& message, int device = 0) {
    ExpectRefused(MakeCudaBackend(SmallConfig(), device).status(), code, message);
  }
};

TEST_F(CudaBackendTest, NamesItsDevice) {
  EXPECT_EQ(MakeCudaBackend(SmallConfig(), 0).value()->device_name(), "cuda:0, emulated");
}

TEST_F(CudaBackendTest, RefusesADeviceThatIsMissing) {
  ExpectNotMade(absl::StatusCode::kUnavailable, "there is no cuda:1; this machine has 1", 1);
  emulation::TheDevice().count = 0;
  ExpectNotMade(absl::StatusCode::kUnavailable, "no GPU can be used: no CUDA-capable device");
}

TEST_F(CudaBackendTest, RefusesADeviceThatIsTooOld) {
  emulation::TheDevice().major = 7;
  ExpectNotMade(absl::StatusCode::kFailedPrecondition, "cuda:0, emulated has compute capability 7.0");
}

TEST_F(CudaBackendTest, RefusesADeviceThatIsTooSmallWithBothNumbers) {
  const MemoryNeed need = CudaMemoryNeed(SmallConfig(), 0).value();
  const int64_t needed = need.state_bytes + need.workspace_bytes;
  emulation::TheDevice().memory_bytes = needed - 1;
  ExpectNotMade(absl::StatusCode::kResourceExhausted,
                absl::StrCat("emulated has ", needed - 1, " bytes free; this shard needs ", needed));
  emulation::TheDevice().memory_bytes = needed;
  EXPECT_TRUE(MakeCudaBackend(SmallConfig(), 0).ok());
}

TEST_F(CudaBackendTest, RefusesSizesOutOfBounds) {
  ShardConfig config = SmallConfig();
  config.dim = 0;
  ExpectInvalid(MakeCudaBackend(config, 0).status(), "dim is 0");
  ExpectInvalid(CudaMemoryNeed(config, 0).status(), "dim is 0");
}

TEST_F(CudaBackendTest, HoldsWhatItSaid) {
  const auto backend = MakeCudaBackend(SmallConfig(), 0).value();
  const MemoryNeed need = CudaMemoryNeed(SmallConfig(), 0).value();
  EXPECT_EQ(backend->memory().state_bytes, need.state_bytes);
  EXPECT_EQ(backend->memory().workspace_bytes, need.workspace_bytes);
  EXPECT_EQ(need.state_bytes, int64_t{8} * 20 * 6);
}

// 8 bytes of state a value, and 8 bytes for the sample's index.
TEST_F(CudaBackendTest, BytesOfAClassStayWithinTheGoal) {
  ShardConfig config;
  config.dim = 512;
  const auto bytes = [&](int64_t classes) {
    config.num_local = classes;
    const MemoryNeed need = CudaMemoryNeed(config, 0).value();
    return need.state_bytes + need.workspace_bytes;
  };
  EXPECT_LE(bytes(29'000'000) - bytes(19'000'000), static_cast<int64_t>(8.4 * 512 * 10'000'000));
}

TEST_F(CudaBackendTest, InitialCentresAreTheCpus) {
  const auto backend = MakeCudaBackend(SmallConfig(), 0).value();
  ASSERT_TRUE(backend->InitialiseRows().ok());
  std::vector<float> rows(20 * 6), want(6);
  ASSERT_TRUE(backend->ReadRows(0, 20, rows.data(), nullptr).ok());
  for (int row = 0; row < 20; ++row) {
    InitialCentre(0, 100 + row, 6, want.data());
    for (int d = 0; d < 6; ++d) EXPECT_FLOAT_EQ(rows[row * 6 + d], want[d]) << row << ", " << d;
  }
}

TEST_F(CudaBackendTest, LargeRowsTravelInPieces) {
  ShardConfig config = SmallConfig();
  config.num_local = 5000;
  config.dim = 521;  // 10.4 MB in pieces of 4 MiB
  const auto backend = MakeCudaBackend(config, 0).value();
  std::vector<float> rows(5000 * 521), back(5000 * 521);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  ASSERT_TRUE(backend->WriteRows(0, 5000, rows.data(), nullptr).ok());
  ASSERT_TRUE(backend->ReadRows(0, 5000, back.data(), nullptr).ok());
  EXPECT_TRUE(back == rows);
  ASSERT_TRUE(backend->ReadRows(4990, 10, nullptr, back.data()).ok());
  EXPECT_EQ(back[5209], 0.0f);
}

// One step of a small shard, and its state.
struct SmallStep {
  std::unique_ptr<ShardBackend> backend;
  std::vector<int64_t> sample = {1, 5, 7, 19};

  absl::Status BeforePass2() {
    std::mt19937_64 random(2);
    const auto features = RandomFeatures(3, 6, random);
    std::copy(features.begin(), features.end(), backend->features());
    if (absl::Status status = backend->SetBatch({105, -1, 119}); !status.ok()) return status;
    if (absl::Status status = backend->Pass1(kCosface, sample); !status.ok()) return status;
    std::copy_n(backend->partials(), 3, backend->gathered_partials());
    if (auto loss = backend->Combine(); !loss.ok()) return loss.status();
    return backend->FinishFeatureGradient(0, 3, backend->gradient_sum());
  }
  std::vector<float> State() const {
    std::vector<float> state(2 * 20 * 6);
    EXPECT_TRUE(backend->ReadRows(0, 20, state.data(), state.data() + 20 * 6).ok());
    return state;
  }
};

TEST_F(CudaBackendTest, AnyCallThatFailsBeforePass2FailsTheStepAndLeavesTheState) {
  SmallStep step{.backend = MakeCudaBackend(SmallConfig(), 0).value()};
  ASSERT_TRUE(step.backend->InitialiseRows().ok());
  const std::vector<float> before = step.State();
  ASSERT_TRUE(step.BeforePass2().ok());
  const std::vector<float> gradient(step.backend->gradient_sum(), step.backend->gradient_sum() + 3 * 6);
  int64_t failing = 0;
  for (;; ++failing) {
    emulation::TheDevice().failing_call = failing;
    const absl::Status status = step.BeforePass2();
    const bool met = emulation::TheDevice().failing_call < 0;
    emulation::TheDevice().failing_call = -1;
    if (!met) break;
    ASSERT_EQ(status.code(), absl::StatusCode::kInternal) << failing << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the GPU failed to "));
    ASSERT_EQ(step.State(), before) << failing;
  }
  EXPECT_GT(failing, 20);  // copies, launches, products, waits
  // The next step is as if nothing had been.
  ASSERT_TRUE(step.BeforePass2().ok());
  EXPECT_EQ(std::vector<float>(step.backend->gradient_sum(), step.backend->gradient_sum() + 3 * 6), gradient);
}

TEST_F(CudaBackendTest, AnyCallThatFailsInPass2IsTold) {
  SmallStep step{.backend = MakeCudaBackend(SmallConfig(), 0).value()};
  ASSERT_TRUE(step.backend->InitialiseRows().ok());
  int64_t failing = 0;
  for (;; ++failing) {
    ASSERT_TRUE(step.BeforePass2().ok());
    emulation::TheDevice().failing_call = failing;
    const absl::Status status = step.backend->Pass2(kUpdate);
    const bool met = emulation::TheDevice().failing_call < 0;
    emulation::TheDevice().failing_call = -1;
    if (!met) break;
    EXPECT_FALSE(status.ok()) << failing;
  }
  EXPECT_GT(failing, 3);
}

TEST_F(CudaBackendTest, AnyCallThatFailsWhileItIsMadeIsTold) {
  int64_t failing = 0;
  for (;; ++failing) {
    emulation::TheDevice().failing_call = failing;
    const absl::Status status = MakeCudaBackend(SmallConfig(), 0).status();
    const bool met = emulation::TheDevice().failing_call < 0;
    emulation::TheDevice().failing_call = -1;
    if (!met) break;
    EXPECT_FALSE(status.ok()) << failing;
  }
  EXPECT_GT(failing, 30);
}

TEST_F(CudaBackendTest, RowsTooManyToListAreRefused) {
  const auto backend = MakeCudaBackend(SmallConfig(), 0).value();
  ASSERT_TRUE(backend->InitialiseRows().ok());
  std::fill_n(backend->features(), 6, 1.0f);
  ASSERT_TRUE(backend->SetBatch({-1}).ok());
  std::vector<Neighbour> neighbours;
  emulation::TheDevice().failing_call = 0;  // the allocation of the lists
  EXPECT_EQ(backend->Nearest(3, &neighbours).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CudaBackendTest, TheOrderOfThreadsAndBlocksDoesNotChangeABit) {
  std::vector<std::vector<float>> outcomes;
  for (emulation::Order order :
       {emulation::Order::kForward, emulation::Order::kReversed, emulation::Order::kShuffled}) {
    emulation::TheDevice().order = order;
    BackendCluster cluster({.num_classes = 300, .num_shards = 2, .dim = 24});
    std::mt19937_64 random(9);
    std::vector<float>& outcome = outcomes.emplace_back();
    for (int step = 0; step < 2; ++step) {
      const std::vector<int64_t> labels = RandomLabels(10, 300, random);
      const auto result = cluster.Step(RandomFeatures(10, 24, random), labels,
                                       Sample(cluster, labels, 0.9, step), kCosface, kUpdate);
      outcome.insert(outcome.end(), result.value().gradient.begin(), result->gradient.end());
    }
    for (int rank = 0; rank < 2; ++rank) {
      const auto weight = cluster.Weight(rank);
      outcome.insert(outcome.end(), weight.begin(), weight.end());
    }
  }
  EXPECT_EQ(outcomes[0], outcomes[1]);
  EXPECT_EQ(outcomes[0], outcomes[2]);
}

}  // namespace
}  // namespace ccs::kernels
