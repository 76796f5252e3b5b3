// What a cluster may do, said by one thread that sees everything.
#ifndef CCS_TESTS_SERVER_SIMULATION_MODEL_H_
#define CCS_TESTS_SERVER_SIMULATION_MODEL_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/engine/types.h"
#include "tests/server/simulation/world.h"

namespace ccs::simulation {

// The rows of a shard, boiled down: what came of all steps so far, and which writes were applied how often.
struct Rows {
  // What a slice is answered: exactly representable.
  double LossOf(uint64_t digest) const { return static_cast<double>(Mix(steps, digest) >> 11); }

  uint64_t steps = 0;
  std::map<std::string, int> writes;
  friend bool operator==(const Rows&, const Rows&) = default;
};

// A slice as it takes part in a step.
struct Part {
  int trainer = 0;
  int rank = 0;
  uint64_t digest = 0;
  uint64_t incarnation = 0;  // 0 in a replay
  int64_t payload = 0;       // of the whole step of this trainer
  friend bool operator==(const Part&, const Part&) = default;
};

// Remembers the first of everything, and compares all that follows. A violation is kept as text.
class Model {
 public:
  // A shard has come to `position` with `rows`, for the first time or by a replay.
  void Arrived(const Position& position, const Rows& rows);
  // A step of a run of `num_trainers` with these parts is to be taken.
  void StepTaken(const RunState& run, int num_shards, const std::vector<Part>& parts, bool is_replay);
  // A trainer was given this for the part of a step that has this digest.
  void Replied(uint64_t lineage, int64_t step, uint64_t digest, double loss);
  // A trainer has its replies for all parts of a step.
  void Acknowledged(uint64_t lineage, int64_t step);
  void WriteAcknowledged(const std::string& write_id) { written_.insert(write_id); }
  // The cluster serves, from here on. Acknowledged steps of the lineage must be behind it.
  void Serves(const Position& position);
  // One more new lineage is no violation: something was lost, or a trainer asked.
  void AllowNewLineage() {
    ++new_lineages_allowed_;
    anything_lost_ = true;
  }

  void Violated(const std::string& what) { violations_.push_back(what); }
  // All is over, and these are the rows everywhere.
  void Ends(const Rows& rows);
  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t lineage() const { return lineage_; }
  int64_t steps_acknowledged() const { return steps_acknowledged_; }

 private:
  std::map<std::pair<uint64_t, int64_t>, std::pair<int64_t, Rows>> arrivals_;  // by lineage and index
  std::map<std::pair<uint64_t, int64_t>, uint64_t> steps_;  // Rows::steps, by lineage and step
  std::map<uint64_t, int64_t> acknowledged_;                // last step, by lineage
  uint64_t lineage_ = 0;                                    // that served last
  int new_lineages_allowed_ = 1;
  bool anything_lost_ = false;
  std::set<std::string> written_;
  int64_t steps_acknowledged_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace ccs::simulation

#endif  // CCS_TESTS_SERVER_SIMULATION_MODEL_H_
