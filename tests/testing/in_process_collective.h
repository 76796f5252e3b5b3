// Collectives between the threads of one process, without sockets, so that the thread sanitizer sees all of
// it.
#ifndef CCS_TESTS_TESTING_IN_PROCESS_COLLECTIVE_H_
#define CCS_TESTS_TESTING_IN_PROCESS_COLLECTIVE_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/cluster/collective.h"

namespace ccs::testing {

// Called by each rank before each of its calls, `call` counting from 0, with no lock held. It may block (a
// slow rank) or return an error (a failing one): then the call returns that error without having taken part.
using CollectiveFaultHook = std::function<absl::Status(int rank, int call)>;

// A connected group, in rank order. Each member behaves as Collective promises: deadlines, Abort(), and a
// failed or destroyed member is for the others a peer that went away. Ranks that call different operations or
// counts get INTERNAL, since that is a bug of the caller. The members share the group's state and may be
// destroyed in any order.
std::vector<std::unique_ptr<Collective>> MakeInProcessCollectives(int size,
                                                                  CollectiveFaultHook fault_hook = nullptr);

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_IN_PROCESS_COLLECTIVE_H_
