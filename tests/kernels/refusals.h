// A small shard, and how it says no.
#ifndef CCS_TESTS_KERNELS_REFUSALS_H_
#define CCS_TESTS_KERNELS_REFUSALS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/shard_backend.h"

namespace ccs::kernels {

inline ShardConfig SmallConfig() {
  ShardConfig config;
  config.class_start = 100;
  config.num_local = 20;
  config.dim = 6;
  config.max_batch = 4;
  return config;
}

inline void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
}

inline void ExpectInvalid(const absl::Status& status, const std::string& message) {
  ExpectRefused(status, absl::StatusCode::kInvalidArgument, message);
}

}  // namespace ccs::kernels

#endif  // CCS_TESTS_KERNELS_REFUSALS_H_
