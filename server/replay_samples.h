// Sampled rows from files instead of the sampler, for tests against recorded steps.
#ifndef CCS_SERVER_REPLAY_SAMPLES_H_
#define CCS_SERVER_REPLAY_SAMPLES_H_

#include <cstdint>
#include <filesystem>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"

namespace ccs {

// Reads a NumPy file of one dimension and 64-bit integers. NOT_FOUND or INVALID_ARGUMENT names the file.
absl::StatusOr<std::vector<int64_t>> ReadIndexArray(const std::filesystem::path& path);

// Gives step S the local rows of <folder>/shard<rank>/sampled_<S>.npy. A step without a readable file gets no
// rows and a line in the log.
SampledRowsOverride ReplaySamples(const std::filesystem::path& folder, int rank);

}  // namespace ccs

#endif  // CCS_SERVER_REPLAY_SAMPLES_H_
