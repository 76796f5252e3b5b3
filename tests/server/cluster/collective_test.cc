// One suite for every Collective of several ranks, which run as threads: Gloo over the loopback device and
// the in-process one of the tests. Processes that die are in collective_process_test.cc.
#include "server/cluster/collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "server/cluster/gloo_collective.h"
#include "tests/testing/in_process_collective.h"

// Gloo forgets to free the addresses of a host that it cannot bind. The name is the leak checker's.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() { return "leak:gloo::transport::tcp::CreateDeviceAttr"; }

namespace ccs {
namespace {

using ::testing::AnyOf;
using ::testing::Combine;
using ::testing::Each;
using ::testing::Values;

using Group = std::vector<std::unique_ptr<Collective>>;

constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
constexpr auto kDeadlineExceeded = absl::StatusCode::kDeadlineExceeded;

absl::Time Soon() { return absl::Now() + absl::Milliseconds(200); }
absl::Time Late() { return absl::Now() + absl::Seconds(50); }

// Runs one thread a rank and returns their statuses' codes.
template <typename Function>
std::vector<absl::StatusCode> RunRanks(int size, const Function& function) {
  std::vector<absl::StatusCode> codes(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { codes[rank] = function(rank).code(); });
  }
  threads.clear();
  return codes;
}

// A rendezvous for threads.
class Meeting {
 public:
  explicit Meeting(int size) : blobs_(size) {}

  Rendezvous ForRank(int rank) {
    return [this, rank](std::string blob, absl::Time) -> absl::StatusOr<std::vector<std::string>> {
      std::unique_lock lock(mutex_);
      blobs_[rank] = std::move(blob);
      ++arrived_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return arrived_ == blobs_.size(); });
      return blobs_;
    };
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> blobs_;
  size_t arrived_ = 0;
};

CollectiveOptions LoopbackOptions(int rank, int size) {
  return {.rank = rank, .size = size, .host = "127.0.0.1", .deadline = Late()};
}

Group MakeGlooGroup(int size) {
  Group group(size);
  Meeting meeting(size);
  const auto codes = RunRanks(size, [&](int rank) {
    auto member = MakeCpuCollective(LoopbackOptions(rank, size), meeting.ForRank(rank));
    if (!member.ok()) return member.status();
    group[rank] = *std::move(member);
    return absl::OkStatus();
  });
  EXPECT_THAT(codes, Each(kOk));
  return group;
}

enum class Kind { kGloo, kInProcess };

Group MakeGroup(Kind kind, int size) {
  return kind == Kind::kGloo ? MakeGlooGroup(size) : testing::MakeInProcessCollectives(size);
}

class CollectiveTest : public ::testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  int size() const { return std::get<1>(GetParam()); }
  Group group_ = MakeGroup(std::get<0>(GetParam()), std::get<1>(GetParam()));

  // Equal, uneven with zeros, nothing at all, and more than a socket's buffers hold.
  std::vector<std::vector<size_t>> CountsToTry() const {
    std::vector<size_t> equal(size(), 5), uneven(size()), none(size(), 0), big(size(), 800'001);
    for (int rank = 0; rank < size(); ++rank) uneven[rank] = rank % 2 == 0 ? 0 : 1000 * rank + 3;
    big[0] = 1;
    return {equal, uneven, none, big, equal};
  }
};

size_t Sum(const std::vector<size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

unsigned char ByteOf(int rank, size_t i) { return static_cast<unsigned char>(rank * 31 + i * 7 + i / 251); }

TEST_P(CollectiveTest, KnowsRankAndSize) {
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(group_[rank]->rank(), rank);
    EXPECT_EQ(group_[rank]->size(), size());
  }
}

TEST_P(CollectiveTest, AllGatherConcatenatesInRankOrder) {
  for (const std::vector<size_t>& counts : CountsToTry()) {
    std::vector<unsigned char> expected;
    for (int rank = 0; rank < size(); ++rank) {
      for (size_t i = 0; i < counts[rank]; ++i) expected.push_back(ByteOf(rank, i));
    }
    std::vector<std::vector<unsigned char>> received(size(), std::vector<unsigned char>(Sum(counts)));
    const auto codes = RunRanks(size(), [&](int rank) {
      std::vector<unsigned char> send(counts[rank]);
      for (size_t i = 0; i < send.size(); ++i) send[i] = ByteOf(rank, i);
      return group_[rank]->AllGather(send.data(), received[rank].data(), counts, Late());
    });
    EXPECT_THAT(codes, Each(kOk));
    for (int rank = 0; rank < size(); ++rank) EXPECT_TRUE(received[rank] == expected) << "rank " << rank;
  }
}

// Rank r brings (r + 1) * (j mod 1000) at index j: small integers, so the sums are exact.
TEST_P(CollectiveTest, ReduceScatterGivesEachRankTheSumOfItsSegment) {
  const int ranks_sum = size() * (size() + 1) / 2;
  for (const std::vector<size_t>& counts : CountsToTry()) {
    std::vector<std::vector<float>> received(size());
    const auto codes = RunRanks(size(), [&](int rank) {
      std::vector<float> send(Sum(counts));
      for (size_t j = 0; j < send.size(); ++j) send[j] = (rank + 1) * static_cast<float>(j % 1000);
      received[rank].resize(counts[rank]);
      return group_[rank]->ReduceScatter(send.data(), received[rank].data(), counts, Late());
    });
    EXPECT_THAT(codes, Each(kOk));
    size_t start = 0;
    for (int rank = 0; rank < size(); ++rank) {
      size_t wrong = 0;
      for (size_t i = 0; i < counts[rank]; ++i)
        wrong += received[rank][i] != ranks_sum * ((start + i) % 1000);
      EXPECT_EQ(wrong, 0u) << "rank " << rank;
      start += counts[rank];
    }
  }
}

// Magnitudes from 1e-6 to 1e6 and negative zeros: any other order of additions gives other bits.
TEST_P(CollectiveTest, ReduceScatterAddsInRankOrderBitForBit) {
  std::vector<size_t> counts(size(), 4099);
  counts.back() = 7;
  std::vector<std::vector<float>> sent(size(), std::vector<float>(Sum(counts)));
  std::mt19937 random(17);
  std::uniform_real_distribution<float> exponent(-6, 6), mantissa(-1, 1);
  for (auto& values : sent) {
    for (float& value : values) value = mantissa(random) * std::pow(10.0f, exponent(random));
    values[0] = -0.0f;
  }
  std::vector<float> expected = sent[0];
  for (int rank = 1; rank < size(); ++rank) {
    for (size_t j = 0; j < expected.size(); ++j) expected[j] += sent[rank][j];
  }
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<float> received(expected.size());
    const auto codes = RunRanks(size(), [&](int rank) {
      float* own = received.data() + std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
      return group_[rank]->ReduceScatter(sent[rank].data(), own, counts, Late());
    });
    EXPECT_THAT(codes, Each(kOk));
    EXPECT_EQ(std::memcmp(received.data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
}

// As the engine uses it: many calls in a row without any other meeting of the ranks between them.
TEST_P(CollectiveTest, RunsManyDifferentCallsInARow) {
  const auto codes = RunRanks(size(), [&](int rank) {
    for (size_t step = 0; step < 50; ++step) {
      const std::vector<size_t> counts(size(), step % 7);
      std::vector<float> send(Sum(counts), static_cast<float>(step)), sum(step % 7);
      absl::Status status = group_[rank]->ReduceScatter(send.data(), sum.data(), counts, Late());
      if (!status.ok()) return status;
      const std::vector<size_t> bytes(size(), step % 7 * sizeof(float));
      status = group_[rank]->AllGather(sum.data(), send.data(), bytes, Late());
      if (!status.ok()) return status;
      for (float value : send) {
        if (value != step * size()) return absl::InternalError("wrong value");
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(codes, Each(kOk));
}

TEST_P(CollectiveTest, RefusesTheWrongNumberOfCounts) {
  const std::vector<size_t> counts(size() + 1, 0);
  EXPECT_EQ(group_[0]->AllGather(nullptr, nullptr, counts, Late()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(group_[0]->ReduceScatter(nullptr, nullptr, counts, Late()).code(),
            absl::StatusCode::kInvalidArgument);
}

// A gather of one byte a rank.
absl::Status SmallGather(Collective& member, absl::Time deadline) {
  std::vector<char> received(member.size());
  const char own = 'a';
  return member.AllGather(&own, received.data(), std::vector<size_t>(member.size(), 1), deadline);
}

class BrokenCollectiveTest : public CollectiveTest {};

TEST_P(BrokenCollectiveTest, MissesItsDeadlineIfARankNeverComes) {
  const int absent = size() - 1;
  const auto codes = RunRanks(size(), [&](int rank) {
    return rank == absent ? absl::OkStatus() : SmallGather(*group_[rank], Soon());
  });
  // The first to give up is, for the others, a peer that went away.
  EXPECT_THAT(codes, ::testing::Contains(kDeadlineExceeded));
  EXPECT_THAT(std::vector(codes.begin(), codes.end() - 1), Each(AnyOf(kDeadlineExceeded, kUnavailable)));
  EXPECT_EQ(SmallGather(*group_[absent], Late()).code(), kUnavailable);
}

TEST_P(BrokenCollectiveTest, ADeadlineInThePastIsMissed) {
  EXPECT_EQ(SmallGather(*group_[0], absl::InfinitePast()).code(), kDeadlineExceeded);
}

TEST_P(BrokenCollectiveTest, AnErrorIsFinal) {
  EXPECT_EQ(SmallGather(*group_[0], absl::Now()).code(), kDeadlineExceeded);
  EXPECT_THAT(RunRanks(size(), [&](int rank) { return SmallGather(*group_[rank], Late()); }),
              Each(kUnavailable));
}

// Whenever the abort comes, before or within the call, the call returns long before its deadline.
TEST_P(BrokenCollectiveTest, AbortWakesTheCallInProgress) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    Group group = MakeGroup(std::get<0>(GetParam()), size());
    const absl::Time start = absl::Now();
    absl::StatusCode code = kOk;
    std::jthread blocked([&] { code = SmallGather(*group[0], Late()).code(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(repeat / 2));
    group[0]->Abort();
    blocked.join();
    EXPECT_EQ(code, kUnavailable);
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  }
}

TEST_P(BrokenCollectiveTest, AbortOfOneRankReachesThePeers) {
  const absl::Time start = absl::Now();
  const auto codes = RunRanks(size(), [&](int rank) {
    if (rank != 1) return SmallGather(*group_[rank], Late());
    group_[1]->Abort();
    return SmallGather(*group_[1], Late());
  });
  EXPECT_THAT(codes, Each(kUnavailable));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_P(BrokenCollectiveTest, ADestroyedPeerIsUnavailable) {
  group_[0].reset();
  const auto codes = RunRanks(size() - 1, [&](int i) { return SmallGather(*group_[i + 1], Late()); });
  EXPECT_THAT(codes, Each(kUnavailable));
}

// Otherwise the last step before a clean stop would fail on the slower ranks.
TEST_P(BrokenCollectiveTest, APeerThatLeavesAfterItsCallDoesNotDisturbTheOthersCall) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    Group group = MakeGroup(std::get<0>(GetParam()), size());
    const auto codes = RunRanks(size(), [&](int rank) {
      const absl::Status status = SmallGather(*group[rank], Late());
      group[rank].reset();
      return status;
    });
    EXPECT_THAT(codes, Each(kOk));
  }
}

// The caller's bug, but it must not take the process with it or write past a buffer.
TEST_P(BrokenCollectiveTest, RanksThatDisagreeOnCountsGetAnError) {
  const auto codes = RunRanks(size(), [&](int rank) {
    const std::vector<size_t> counts(size(), rank == 0 ? 100 : 1);
    const std::vector<char> send(100);
    std::vector<char> received(Sum(counts));
    return group_[rank]->AllGather(send.data(), received.data(), counts, Soon());
  });
  EXPECT_THAT(codes, Each(AnyOf(kDeadlineExceeded, kUnavailable, absl::StatusCode::kInternal)));
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Kind, int>>& info) {
  const char* kind = std::get<0>(info.param) == Kind::kGloo ? "Gloo" : "InProcess";
  return kind + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveTest,
                         Combine(Values(Kind::kGloo, Kind::kInProcess), Values(1, 2, 3, 5)), NameOf);
INSTANTIATE_TEST_SUITE_P(All, BrokenCollectiveTest,
                         Combine(Values(Kind::kGloo, Kind::kInProcess), Values(2, 3)), NameOf);

TEST(LocalCollectiveTest, FailsAfterAbort) {
  auto alone = MakeCpuCollective(LoopbackOptions(0, 1), nullptr);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_TRUE(SmallGather(**alone, Late()).ok());
  (*alone)->Abort();
  EXPECT_EQ(SmallGather(**alone, Late()).code(), kUnavailable);
}

TEST(MakeCpuCollectiveTest, RefusesARankOutsideTheGroup) {
  EXPECT_EQ(MakeCpuCollective(LoopbackOptions(2, 2), nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GlooCollectiveTest, PassesTheRendezvousErrorOn) {
  const Rendezvous failing = [](std::string, absl::Time) {
    return absl::PermissionDeniedError("no such epoch");
  };
  EXPECT_EQ(MakeCpuCollective(LoopbackOptions(0, 2), failing).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(GlooCollectiveTest, RefusesForeignAddresses) {
  const Rendezvous foreign = [](std::string own, absl::Time) {
    return std::vector<std::string>{own, "short"};
  };
  EXPECT_EQ(MakeCpuCollective(LoopbackOptions(0, 2), foreign).status().code(), absl::StatusCode::kInternal);
}

TEST(GlooCollectiveTest, NamesAHostThatIsNotOurs) {
  CollectiveOptions options = LoopbackOptions(0, 2);
  options.host = "192.0.2.1";  // reserved for documentation
  EXPECT_EQ(MakeCpuCollective(options, nullptr).status().code(), kUnavailable);
}

// The peer with the higher port is the one that connects, so port 65535 leaves rank 0 waiting.
TEST(GlooCollectiveTest, APeerThatNeverConnectsMissesTheDeadline) {
  CollectiveOptions options = LoopbackOptions(0, 2);
  options.deadline = Soon();
  const Rendezvous silent_peer = [](std::string own, absl::Time) {
    std::string other = own.substr(own.size() / 2) + own.substr(0, own.size() / 2);
    sockaddr_in address;
    std::memcpy(&address, own.data() + own.size() / 2, sizeof(address));
    address.sin_port = 0xffff;
    std::memcpy(other.data(), &address, sizeof(address));
    return std::vector<std::string>{own, other};
  };
  EXPECT_EQ(MakeCpuCollective(options, silent_peer).status().code(), kDeadlineExceeded);
}

TEST(InProcessCollectiveTest, FailsTheCallThatTheHookNames) {
  Group group = testing::MakeInProcessCollectives(2, [](int rank, int call) {
    return rank == 1 && call == 2 ? absl::AbortedError("injected") : absl::OkStatus();
  });
  const auto codes = RunRanks(2, [&](int rank) {
    for (int call = 0; call < 2; ++call) {
      if (absl::Status status = SmallGather(*group[rank], Late()); !status.ok()) {
        return absl::InternalError("failed too early");
      }
    }
    return SmallGather(*group[rank], Late());
  });
  EXPECT_EQ(codes[0], kUnavailable);
  EXPECT_EQ(codes[1], absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace ccs
