// Whether a shard fits into memory, before it is allocated.
#ifndef CCS_SERVER_MEMORY_ADMISSION_H_
#define CCS_SERVER_MEMORY_ADMISSION_H_

#include <cstdint>
#include <filesystem>

#include "absl/status/status.h"
#include "kernels/shard_backend.h"

namespace ccs {

// Bytes that this process may still allocate: the least of what the machine has available and what the memory
// limits of its control groups (v1 or v2, with their ancestors) leave, page cache counted as free. The
// maximum of int64_t if nothing is known. `root` stands for "/" in tests.
int64_t AvailableMemory(const std::filesystem::path& root = "/");

// RESOURCE_EXHAUSTED names both numbers if `need` exceeds `available` or, unless it is 0, `limit`.
absl::Status AdmitMemory(const kernels::MemoryNeed& need, int64_t available, int64_t limit);

}  // namespace ccs

#endif  // CCS_SERVER_MEMORY_ADMISSION_H_
