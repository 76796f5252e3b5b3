// Queries, writes, checkpoints and reads of the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "server/engine/ledger.h"
#include "tests/server/engine/engine_shard.h"

namespace ccs::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;

TEST(EngineStateTest, EvaluationGoesToAllShardsAndIsAnsweredByItsOrigin) {
  auto collectives = MakeInProcessCollectives(2);
  EngineShard zero(0, 2, std::move(collectives[0]));
  EngineShard one(1, 2, std::move(collectives[1]));
  zero.Start();
  one.Start();
  Awaited<EvaluateResult> result;
  const uint64_t query = one.engine->AddEvaluate({1, 2, 3, 4}, {4, -1}, result.done());
  const EvaluateOperation operation = {.rows = 2, .sample_rate = {}, .origin_rank = 1, .query = query};
  zero.engine->Enqueue(1, operation);
  one.engine->Enqueue(1, operation);
  const auto got = result.Get();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->labelled_rows, 1);
  EXPECT_EQ(got->evaluation.rank1_hits, 1);
  EXPECT_EQ(got->position.lineage, kLineage);
  zero.Centres({0});
  EXPECT_THAT(zero.backend->labels(), ElementsAre(4, -1));
  EXPECT_THAT(absl::MakeConstSpan(zero.backend->features(), 4),
              AllOf(::testing::SizeIs(4), ::testing::Contains(3)));
  EXPECT_EQ(zero.backend->evaluated_rows(), 3) << "every class";
}

TEST(EngineStateTest, NearestMergesTheShards) {
  auto collectives = MakeInProcessCollectives(2);
  EngineShard zero(0, 2, std::move(collectives[0]));
  EngineShard one(1, 2, std::move(collectives[1]));
  zero.Start();
  one.Start();
  Awaited<NearestResult> result;
  const uint64_t query = zero.engine->AddNearest({0.5, 0}, result.done());
  const NearestOperation operation = {.rows = 1, .k = 2, .origin_rank = 0, .query = query};
  zero.engine->Enqueue(1, operation);
  one.engine->Enqueue(1, operation);
  const auto got = result.Get();
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_EQ(got->neighbours.size(), 2u);
  EXPECT_EQ(got->neighbours[0].class_id, 0);
  EXPECT_EQ(got->neighbours[1].class_id, 3);
}

TEST(EngineStateTest, AQueryThatWasGivenUpStillTakesItsTurn) {
  const auto shard = OneShard();
  shard->Start();
  Awaited<EvaluateResult> given_up;
  const uint64_t query = shard->engine->AddEvaluate({1, 2}, {4}, given_up.done());
  shard->engine->FailQuery(query, absl::CancelledError("the client has left"));
  shard->engine->FailQuery(query, absl::CancelledError("twice"));
  EXPECT_EQ(given_up.Get().status().message(), "the client has left");
  shard->engine->Enqueue(1,
                         EvaluateOperation{.rows = 1, .sample_rate = {}, .origin_rank = 0, .query = query});
  Awaited<NearestResult> next;
  const uint64_t nearest = shard->engine->AddNearest({0.5, 0}, next.done());
  shard->engine->Enqueue(2, NearestOperation{.rows = 1, .k = 1, .origin_rank = 0, .query = nearest});
  EXPECT_TRUE(next.Get().ok());
  EXPECT_THAT(shard->backend->calls(),
              ElementsAre("InitialiseRows", "SetBatch", "Evaluate", "SetBatch", "Nearest"));
}

TEST(EngineStateTest, AQueryTooLargeForTheBatchFailsAlone) {
  const auto shard = OneShard();
  shard->Start();
  Awaited<NearestResult> large;
  const uint64_t query = shard->engine->AddNearest(std::vector<float>(9 * kDim), large.done());
  shard->engine->Enqueue(1, NearestOperation{.rows = 9, .k = 1, .origin_rank = 0, .query = query});
  EXPECT_EQ(large.Get().status().code(), absl::StatusCode::kInvalidArgument);
  shard->engine->Enqueue(2, CheckpointOperation{});
  EXPECT_TRUE(shard->control.WaitDone().status.ok());
}

TEST(EngineStateTest, StagedRowsAreWrittenOnceUnderTheirId) {
  const auto shard = OneShard();
  shard->Start();
  ASSERT_TRUE(shard->staged.Add("w", {1, 2, 5}, {10, 10, 20, 20, 50, 50}).ok());
  shard->engine->Enqueue(1, CommitWriteOperation{"w", 3});
  EXPECT_TRUE(shard->control.WaitDone(0).status.ok());
  ASSERT_TRUE(shard->staged.Add("w", {1}, {99, 99}).ok());
  shard->engine->Enqueue(2, CommitWriteOperation{"w", 3});
  EXPECT_EQ(shard->control.WaitDone(1).sequence, 2u);
  EXPECT_THAT(shard->Centres({0, 1, 2, 5}).centres, ElementsAre(1, 1, 10, 10, 20, 20, 50, 50));
  EXPECT_THAT(shard->backend->calls(), ElementsAre("InitialiseRows", "WriteRows", "WriteRows"))
      << "1 and 2 go together";
}

TEST(EngineStateTest, ACheckpointBringsRowsPositionAndLedgerBack) {
  const CheckpointId id = {kLineage, 1, 77};
  MemoryCheckpointStore saved;
  {
    const auto shard = OneShard();
    shard->Start();
    ASSERT_TRUE(shard->staged.Add("w", {2}, {8, 9}).ok());
    shard->engine->Enqueue(1, CommitWriteOperation{"w", 1});
    shard->Submit(0, 1, {1}, 5);
    shard->Go(1, {1}, {0}, id);
    const auto done = shard->control.WaitDone(1);
    EXPECT_EQ(done.sequence, 101u);
    EXPECT_TRUE(done.status.ok());
    EXPECT_EQ(done.bytes, 6 * kDim * 2 * 4);
    shard->EndEpoch();
    saved.stored() = shard->store.stored();
  }
  EXPECT_EQ(saved.stored().at(id).header.spec, "the spec");
  const auto shard = OneShard();
  shard->store.stored() = saved.stored();
  shard->Start(id);
  const auto formed = shard->control.WaitFormed();
  ASSERT_TRUE(formed.status.ok()) << formed.status;
  ASSERT_EQ(formed.state.committed_writes.size(), 1u);
  EXPECT_EQ(formed.state.committed_writes[0].write_id, "w");
  const CentreRows rows = shard->Centres({0, 2});
  EXPECT_THAT(rows.centres, ElementsAre(0.5, 0.5, 7.5, 8.5));
  EXPECT_EQ(rows.position.step, 1);
  EXPECT_EQ(shard->engine->progress().step, 1);
}

// Rows are all 1 at first; each step takes 0.5 from the sampled ones.
TEST(EngineStateTest, TrainingGoesOnWhileACheckpointOfItsStepIsWritten) {
  const auto shard = OneShard();
  shard->options.sampled_rows = [](int64_t) { return std::vector<int64_t>{2, 4}; };
  std::promise<void> steps_are_over;
  shard->store.set_before_rows([over = steps_are_over.get_future().share()] { over.wait(); });
  shard->Start();
  const CheckpointId id = {kLineage, 1, 77};
  for (int64_t step = 1; step <= 3; ++step) {
    auto reply = shard->Submit(0, step, {4}, 0.25f);
    shard->Go(step, {1}, {0}, step == 1 ? std::optional<CheckpointId>(id) : std::nullopt);
    ASSERT_TRUE(reply.Get().ok());
  }
  EXPECT_THAT(shard->Centres({2, 3}).centres, ElementsAre(-0.5f, -0.5f, 1, 1)) << "all steps are taken";
  EXPECT_TRUE(shard->store.stored().empty());
  steps_are_over.set_value();
  EXPECT_TRUE(shard->control.WaitDone().status.ok());
  const auto& stored = shard->store.stored().at(id);
  EXPECT_THAT(stored.weight, ElementsAre(1, 1, 1, 1, 0.5f, 0.5f, 1, 1, 0.5f, 0.5f, 1, 1));
  EXPECT_EQ(stored.header.index, 1);
}

TEST(EngineStateTest, TheNextCheckpointWaitsForTheOneThatIsWritten) {
  const auto shard = OneShard();
  shard->Start();
  shard->engine->Enqueue(1, CheckpointOperation{{kLineage, 0, 1}, ""});
  shard->engine->Enqueue(2, CheckpointOperation{{kLineage, 0, 2}, ""});
  EXPECT_EQ(shard->control.WaitDone(0).sequence, 1u);
  EXPECT_EQ(shard->control.WaitDone(1).sequence, 2u);
  EXPECT_EQ(shard->store.stored().size(), 2u);
}

TEST(EngineStateTest, ANewEpochBreaksOffTheCheckpointThatIsWritten) {
  const auto shard = OneShard();
  std::promise<void> begun;
  std::promise<void> formed;
  std::once_flag once;
  shard->store.set_before_rows([&, over = formed.get_future().share()] {
    std::call_once(once, [&] { begun.set_value(); });
    over.wait();
  });
  shard->Start();
  shard->engine->Enqueue(1, CheckpointOperation{{kLineage, 0, 1}, ""});
  begun.get_future().wait();
  shard->EndEpoch();
  shard->next_collective = std::move(MakeInProcessCollectives(1)[0]);
  std::thread form([&] { shard->Start(); });
  formed.set_value();
  form.join();
  shard->engine->Enqueue(2, CheckpointOperation{{kLineage, 0, 2}, ""});
  EXPECT_EQ(shard->control.WaitDone(0).sequence, 2u) << "nobody asks for the first one any more";
}

TEST(EngineStateTest, AFullDiskFailsTheCheckpointAndNothingElse) {
  const auto shard = OneShard();
  shard->Start();
  shard->store.set_disk_full(true);
  shard->engine->Enqueue(1, CheckpointOperation{{kLineage, 0, 1}, "test"});
  EXPECT_EQ(shard->control.WaitDone().status.code(), absl::StatusCode::kResourceExhausted);
  auto reply = shard->Submit(0, 1, {1}, 5);
  shard->Go(1, {1}, {0});
  EXPECT_TRUE(reply.Get().ok());
  EXPECT_EQ(shard->control.num_failures(), 0u);
  EXPECT_THAT(shard->metrics.Text(), HasSubstr("fail"));
}

TEST(EngineStateTest, WithoutAStoreACheckpointIsRefused) {
  const auto shard = OneShard(nullptr, false);
  shard->Start();
  shard->engine->Enqueue(1, CheckpointOperation{{kLineage, 0, 1}, "test"});
  EXPECT_EQ(shard->control.WaitDone().status.code(), absl::StatusCode::kFailedPrecondition);
  shard->EndEpoch();
  shard->next_collective = std::move(MakeInProcessCollectives(1)[0]);
  shard->Start(CheckpointId{kLineage, 4, 1});
  EXPECT_EQ(shard->control.WaitFormed(1).status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(EngineStateTest, AWholeCheckpointRemovesOlderOnes) {
  const auto shard = OneShard();
  shard->options.keep_checkpoints = 2;
  shard->Start();
  for (int nonce = 1; nonce <= 4; ++nonce) {
    shard->engine->Enqueue(nonce, CheckpointOperation{{kLineage, 0, static_cast<uint64_t>(nonce)}, "test"});
  }
  shard->control.WaitDone(3);
  shard->engine->CheckpointCommitted({kLineage, 0, 3});
  shard->engine.reset();
  EXPECT_THAT(shard->store.stored(),
              ElementsAre(Key(CheckpointId{kLineage, 0, 2}), Key(CheckpointId{kLineage, 0, 3}),
                          Key(CheckpointId{kLineage, 0, 4})));
}

class ForeignCheckpointTest
    : public ::testing::TestWithParam<std::pair<void (*)(CheckpointHeader*), const char*>> {};

TEST_P(ForeignCheckpointTest, IsRefusedWithBothSidesNamed) {
  const CheckpointId id = {kLineage, 9, 1};
  const auto shard = OneShard();
  CheckpointHeader header = {
      .id = id, .class_start = 0, .num_local = 6, .dim = kDim, .spec = "the spec", .created = {}};
  GetParam().first(&header);
  shard->store.stored()[id] = {header, std::vector<float>(12), std::vector<float>(12), {}};
  shard->Start(id);
  const absl::Status status = shard->control.WaitFormed().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().second));
}

INSTANTIATE_TEST_SUITE_P(
    Headers, ForeignCheckpointTest,
    ::testing::Values(std::pair{+[](CheckpointHeader* h) {
                                  h->num_shards = 3;
                                  h->num_local = 5;
                                },
                                "5 classes from 0 of width 2, this cluster 6"},
                      std::pair{+[](CheckpointHeader* h) { h->rank = 2; }, "is of rank 2, this is 0"},
                      std::pair{+[](CheckpointHeader* h) { h->spec = "another"; },
                                "{another}, this cluster trains {the spec}"},
                      std::pair{+[](CheckpointHeader* h) { h->num_local = 5; }, "5 classes from 0"},
                      std::pair{+[](CheckpointHeader* h) { h->class_start = 1; }, "6 classes from 1"},
                      std::pair{+[](CheckpointHeader* h) { h->dim = 3; }, "of width 3"}));

TEST(EngineStateTest, ACheckpointOfAnotherNumberOfShardsIsLoadedByClassIdWithItsLedger) {
  const CheckpointId id = {kLineage, 9, 1};
  Ledger ledger;
  ledger.AddWrite({"w", 4});
  EngineShard shard(1, 2, std::move(MakeInProcessCollectives(2)[1]));  // classes 3, 4 and 5
  const CheckpointHeader header = {.id = id,
                                   .num_shards = 3,
                                   .class_start = 0,
                                   .num_local = 6,
                                   .dim = kDim,
                                   .spec = "the spec",
                                   .created = {}};
  shard.store.stored()[id] = {header,
                              {0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51},
                              {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5},
                              {{Ledger::kRecordName, ledger.ToRecord()}}};
  shard.Start(id);
  const auto formed = shard.control.WaitFormed();
  ASSERT_TRUE(formed.status.ok()) << formed.status;
  ASSERT_EQ(formed.state.committed_writes.size(), 1u);
  const CentreRows rows = shard.Centres({3, 4, 5});
  EXPECT_THAT(rows.centres, ElementsAre(30, 31, 40, 41, 50, 51));
  EXPECT_THAT(rows.momentum, ElementsAre(3, 3, 4, 4, 5, 5));
}

TEST(EngineStateTest, ACheckpointWithoutALedgerIsDamaged) {
  const CheckpointId id = {kLineage, 9, 1};
  const auto shard = OneShard();
  const CheckpointHeader header = {
      .id = id, .class_start = 0, .num_local = 6, .dim = kDim, .spec = "the spec", .created = {}};
  shard->store.stored()[id] = {header, std::vector<float>(12), std::vector<float>(12), {}};
  shard->Start(id);
  EXPECT_EQ(shard->control.WaitFormed().status.code(), absl::StatusCode::kDataLoss);
}

TEST(EngineStateTest, ReadsOfOtherShardsRowsAreRefused) {
  auto collectives = MakeInProcessCollectives(2);
  EngineShard one(1, 2, std::move(collectives[1]));
  one.Start();
  Awaited<CentreRows> read;
  one.engine->ReadCentres({3, 2}, false, read.done());
  const absl::Status status = read.Get().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("class 2"));
  EXPECT_THAT(one.Centres({3}).momentum, ElementsAre(0, 0));
}

}  // namespace
}  // namespace ccs::testing
