// What this build is.
#ifndef CCS_SERVER_VERSION_H_
#define CCS_SERVER_VERSION_H_

namespace ccs {

// The project's version and, when built from a git checkout, its commit: "0.1.0 (f56b0a1)". All shards of a
// group must say the same. Defined in a source that the build writes.
extern const char* const kVersion;

}  // namespace ccs

#endif  // CCS_SERVER_VERSION_H_
