// Which steps a cluster can go back to.
#ifndef CCS_SERVER_CLUSTER_WINDOW_H_
#define CCS_SERVER_CLUSTER_WINDOW_H_

#include <ccs/v1/cluster.pb.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/cluster/history.h"
#include "server/engine/types.h"

namespace ccs {

// A state that every rank can make, and the steps after it that the log leads to.
struct WindowPart {
  Origin origin;  // a checkpoint, or how a lineage began
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::optional<Replay> log;  // up to last_step
};

// First to last, both included.
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
  friend bool operator==(const StepRange&, const StepRange&) = default;
};

// Of the lineage and those it came from, newest first; `began_from` as in History::Ancestry.
std::vector<WindowPart> FindWindow(const History& history, uint64_t lineage,
                                   const std::optional<CheckpointId>& began_from);

// What the parts reach together, in ascending order.
std::vector<StepRange> StepsOf(const std::vector<WindowPart>& window);
// "steps 3 to 20, 25", or "nothing".
std::string Describe(const std::vector<StepRange>& steps);

// The lineage that a cluster serves.
struct ServedLineage {
  Origin origin;  // of its beginning, if it began in this process's time
  int64_t begin_step = 0;
  Position position;
  Position cut;  // the logs have been cut there; lineage 0: they have not
};

// What the ranks would say of their logs now, from what they said when they registered.
std::vector<v1::Register> WithLogsOfNow(const std::vector<const v1::Register*>& ranks,
                                        const ServedLineage& served);

}  // namespace ccs

#endif  // CCS_SERVER_CLUSTER_WINDOW_H_
