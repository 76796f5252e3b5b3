// Tells whether two requests for a step carry the same payload.
#ifndef CCS_SERVER_ENGINE_SLICE_DIGEST_H_
#define CCS_SERVER_ENGINE_SLICE_DIGEST_H_

#include <cstdint>

#include "server/engine/types.h"

namespace ccs {

// A 64-bit hash (XXH3) of params, gradient_scale, features and labels: what Slice::digest holds. Who sends
// and which step it is do not enter. Thread-safe.
uint64_t SliceDigest(const Slice& slice);

}  // namespace ccs

#endif  // CCS_SERVER_ENGINE_SLICE_DIGEST_H_
