// The kernels of one shard: each phase of a step, the pieces that they are made of, and the limit.
//
// Rates are useful flops: 2 * batch * sampled * dim for every product. SingleProduct is one large call of the
// product library; a step cannot be faster than its three products at that rate.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/cpu/product.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/random.h"
#include "kernels/sampling.h"
#include "kernels/shard_backend.h"

namespace ccs::kernels {
namespace {

constexpr int64_t kClasses = 180'000;
constexpr double kRate = 0.1;
constexpr int kDim = 512;
constexpr int kBatch = 1024;
constexpr Head kHead{.margin = {.m3 = 0.4f}};

class StepFixture : public benchmark::Fixture {
 public:
  void SetUp(const benchmark::State& state) override {
    ShardConfig config;
    config.num_local = kClasses;
    config.dim = kDim;
    config.max_batch = kBatch;
    config.kept_logits_bytes = state.range(0) << 20;
    config.threads = static_cast<int>(state.range(1));
    backend_ = MakeCpuBackend(config).value();
    backend_->InitialiseRows().IgnoreError();
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kBatch * kDim; ++i) backend_->features()[i] = normal(random);
    labels_.resize(kBatch);
    for (int64_t& label : labels_) label = static_cast<int64_t>(random() % kClasses);
    Sampler sampler(kClasses, kRate, 1, 0);
    const auto rows = sampler.Draw(1, LocalPositives(labels_, 0, kClasses));
    sampled_.assign(rows.begin(), rows.end());
  }
  void TearDown(const benchmark::State&) override { backend_.reset(); }

  absl::Status Pass1() {
    if (absl::Status status = backend_->SetBatch(labels_); !status.ok()) return status;
    return backend_->Pass1(kHead, sampled_);
  }
  absl::Status Combine() {
    std::copy_n(backend_->partials(), kBatch, backend_->gathered_partials());
    if (auto loss = backend_->Combine(); !loss.ok()) return loss.status();
    return backend_->FinishFeatureGradient(0, kBatch, backend_->gradient_sum());
  }
  absl::Status Pass2() { return backend_->Pass2({.learning_rate = 0.1f}); }

  // Reports the rate of `products` products an iteration.
  void CountFlops(benchmark::State& state, int products) const {
    const double flops = 2.0 * kBatch * kDim * static_cast<double>(sampled_.size()) * products;
    state.counters["flops"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  }

 protected:
  std::unique_ptr<ShardBackend> backend_;
  std::vector<int64_t> labels_;
  std::vector<int64_t> sampled_;
};

BENCHMARK_DEFINE_F(StepFixture, Pass1)(benchmark::State& state) {
  for (auto _ : state) {
    if (!Pass1().ok()) state.SkipWithError("pass 1 failed");
  }
  CountFlops(state, 2);
}

BENCHMARK_DEFINE_F(StepFixture, WholeStep)(benchmark::State& state) {
  for (auto _ : state) {
    if (!Pass1().ok() || !Combine().ok() || !Pass2().ok()) state.SkipWithError("step failed");
  }
  CountFlops(state, 3);
}

// Arguments: MiB of kept logits, threads.
BENCHMARK_REGISTER_F(StepFixture, Pass1)->Args({256, 1})->Args({256, 2})->UseRealTime();
BENCHMARK_REGISTER_F(StepFixture, WholeStep)->Args({256, 1})->Args({0, 1})->Args({256, 2})->UseRealTime();

void SingleProduct(benchmark::State& state) {
  constexpr int kColumns = 2048;
  std::vector<float> a(kBatch * kDim, 0.5f);
  std::vector<float> b(kColumns * kDim, 0.25f);
  std::vector<float> c(kBatch * kColumns);
  for (auto _ : state) {
    if (!Multiply({kBatch, kColumns, kDim}, {a.data(), kDim}, {b.data(), kDim, true}, false, c.data(),
                  kColumns)
             .ok()) {
      state.SkipWithError("product failed");
    }
  }
  state.counters["flops"] =
      benchmark::Counter(2.0 * kBatch * kDim * kColumns, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(SingleProduct);

void SoftmaxRow(benchmark::State& state) {
  std::vector<float> cosines(1024, 0.01f);
  std::vector<float> weights(1024);
  RunningSoftmax running;
  for (auto _ : state) AddToSoftmax(cosines.data(), 1024, {}, &running, weights.data());
  state.SetItemsProcessed(state.iterations() * 1024);
}
BENCHMARK(SoftmaxRow);

void UpdateRows(benchmark::State& state) {
  std::vector<float> gradient(kDim, 1e-3f);
  std::vector<float> weight(kDim, 0.01f);
  std::vector<float> momentum(kDim);
  for (auto _ : state) {
    UpdateRow(gradient.data(), kDim, {0.001f, 0.9f, 5e-4f}, weight.data(), momentum.data());
  }
  state.SetItemsProcessed(state.iterations() * kDim);
}
BENCHMARK(UpdateRows);

void DrawSample(benchmark::State& state) {
  Sampler sampler(kClasses, kRate, 1, 0);
  int64_t step = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sampler.Draw(++step, {}).data());
  state.SetItemsProcessed(state.iterations() * sampler.num_sample());
}
BENCHMARK(DrawSample);

void InitialCentres(benchmark::State& state) {
  std::vector<float> row(kDim);
  int64_t id = 0;
  for (auto _ : state) InitialCentre(1, ++id, kDim, row.data());
  state.SetItemsProcessed(state.iterations() * kDim);
}
BENCHMARK(InitialCentres);

}  // namespace
}  // namespace ccs::kernels

BENCHMARK_MAIN();
