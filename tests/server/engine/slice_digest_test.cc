#include "server/engine/slice_digest.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

namespace ccs {
namespace {

Slice SomeSlice() {
  Slice slice;
  slice.params.learning_rate = 0.1f;
  slice.features = {1, 2, 3, 4};
  slice.labels = {7, -1};
  return slice;
}

TEST(SliceDigestTest, EqualPayloadsHaveEqualDigestsWhoeverSendsThem) {
  Slice other = SomeSlice();
  other.run_id = "another";
  other.incarnation = 5;
  other.trainer_rank = 3;
  EXPECT_EQ(SliceDigest(SomeSlice()), SliceDigest(other));
}

TEST(SliceDigestTest, EveryPartOfThePayloadEnters) {
  const std::vector<std::function<void(Slice&)>> changes = {
      [](Slice& s) { s.params.learning_rate = 0.2f; },
      [](Slice& s) { s.params.scale = 0.0f; },
      [](Slice& s) { s.params.scale = 32.0f; },
      [](Slice& s) { s.params.margin = kernels::Margin{}; },
      [](Slice& s) {
        s.params.margin = kernels::Margin{1, 0.5f, 0};
      },
      [](Slice& s) {
        s.params.margin = kernels::Margin{1, 0, 0.5f};
      },
      [](Slice& s) { s.params.checkpoint = true; },
      [](Slice& s) { s.gradient_scale = 2; },
      [](Slice& s) { s.features[3] = 4.0000005f; },
      [](Slice& s) { std::swap(s.features[0], s.features[1]); },
      [](Slice& s) { s.labels[0] = 8; },
      [](Slice& s) { s.features.clear(), s.labels.clear(); },
  };
  std::set<uint64_t> digests = {SliceDigest(SomeSlice())};
  for (const auto& change : changes) {
    Slice slice = SomeSlice();
    change(slice);
    EXPECT_TRUE(digests.insert(SliceDigest(slice)).second);
  }
}

}  // namespace
}  // namespace ccs
