// Places where the tests end or stop a shard.
#ifndef CCS_SERVER_FAULT_POINT_H_
#define CCS_SERVER_FAULT_POINT_H_

namespace ccs {

// The process has come to the place of this name, a literal such as "log/before_sync". Does nothing: a test
// binary links a definition of its own (tests/testing/fault_point.cc), so that a shipped shard has no code
// that could end it. Any thread.
void ReachFaultPoint(const char* name);

}  // namespace ccs

#endif  // CCS_SERVER_FAULT_POINT_H_
