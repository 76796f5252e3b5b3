// One trainer process of a simulated run: what the client library does, over a network that loses and
// repeats.
#ifndef CCS_TESTS_SERVER_SIMULATION_TRAINER_H_
#define CCS_TESTS_SERVER_SIMULATION_TRAINER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tests/server/simulation/cluster.h"
#include "tests/server/simulation/model.h"
#include "tests/server/simulation/world.h"

namespace ccs::simulation {

// The last step whose result a trainer has, and what came of it. Its file outlives its processes.
struct Backbone {
  int64_t step = 0;
  uint64_t weights = 0;
  std::map<int64_t, uint64_t> earlier;  // weights after each step
};

// Trains until `last_step`. Owned by shared_ptr; dies when it is let go of.
class Trainer : public std::enable_shared_from_this<Trainer> {
 public:
  Trainer(World* world, Cluster* cluster, Model* model, int rank, int num_trainers, int64_t last_step,
          std::shared_ptr<Backbone> file);

  void Start() { Open(); }
  // Goes on after this step, if the cluster can go back so far; else from where it is. Before Start.
  void GoBackTo(int64_t step) {
    resume_step_ = step;
    wanted_back_ = true;
  }
  // Another process has this rank now; this one goes on until it is refused.
  void BeReplaced() { replaced_ = true; }
  int64_t step() const { return backbone_.step; }
  bool finished() const { return backbone_.step >= last_step_; }

 private:
  using Done = StepAssembler::Done;

  // A call of Step: the same payload to every home shard, again and again until it is answered.
  struct Call {
    int64_t number = 0;
    uint64_t payload = 0;
    std::map<int, std::optional<double>> losses;  // by home shard
  };

  void After(absl::Duration delay, std::function<void()> what);
  void Open();
  void Opened(uint64_t nonce, const Position& position);
  void BeginStep();
  // The step's right input; the next higher number is the one that is corrected.
  uint64_t Payload() const { return Mix(Mix(rank_, backbone_.step + 1), backbone_.weights); }
  void NewCall(uint64_t payload);
  void SendPart(int64_t call, int rank);
  void Deliver(int rank, const Slice& slice, const Done& done);
  void Answered(int64_t call, int rank, const absl::StatusOr<std::shared_ptr<const SliceReply>>& reply);
  void Failed(int64_t call, int rank, const absl::Status& status);
  void FinishStep();

  World* const world_;
  Cluster* const cluster_;
  Model* const model_;
  const int rank_;
  const int num_trainers_;
  const int64_t last_step_;
  const std::shared_ptr<Backbone> file_;
  Backbone backbone_;
  std::optional<int64_t> resume_step_;
  bool wanted_back_ = false;  // at some time
  bool replaced_ = false;
  uint64_t incarnation_ = 0;
  uint64_t opening_ = 0;  // the nonce of the OpenRun that is waited for
  uint64_t lineage_ = 0;
  int64_t calls_ = 0;
  std::optional<Call> call_;
};

}  // namespace ccs::simulation

#endif  // CCS_TESTS_SERVER_SIMULATION_TRAINER_H_
