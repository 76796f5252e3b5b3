// The client library: what a backbone trainer links.
//
//   auto client = ccs::client::Client::Connect({.addresses = {"localhost:8001"}});
//   auto run = (*client)->OpenRun({.run_id = "glyphs", .trainer_rank = 0, .num_trainers = 1});
//   ccs::client::StepInput input{.features = x, .labels = y, .learning_rate = 0.1f};
//   auto result = (*run)->Step(input);   // result->loss, result->feature_grad [rows, dim]
//
// Matrices are row-major, dense, float32, host memory. All errors are absl::Status with a message that says
// what to do; the codes are listed in client/README.md.
#ifndef CCS_CLIENT_CLIENT_H_
#define CCS_CLIENT_CLIENT_H_

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ccs::client {

struct ClientOptions {
  // host:port of one or more shards; the first that answers tells where the others are.
  std::vector<std::string> addresses = {"localhost:8001"};
  // Every call returns within this, retries included.
  absl::Duration timeout = absl::Seconds(60);
};

struct Shard {
  int rank = 0;
  std::string address;
  int64_t class_start = 0;
  int64_t num_classes = 0;
};

// Where the cluster stands: `step` steps of `lineage` are applied.
struct Position {
  uint64_t lineage = 0;
  int64_t step = 0;
};

// Where the cluster stood when it refused, if the error says so: of ABORTED (a step of an abandoned history)
// and of a step other than the expected one.
std::optional<Position> PositionFromStatus(const absl::Status& status);

struct ClusterInfo {
  int64_t num_classes = 0;
  int dim = 0;
  std::vector<Shard> shards;  // by rank
  Position position;          // when connecting
  std::string version;
};

// cos(m1 * t + m2) - m3 of the angle t between a feature and its own centre.
struct Margin {
  float m1 = 1;
  float m2 = 0;  // radians
  float m3 = 0;
};

struct StepInput {
  absl::Span<const float> features;  // [rows, dim]
  absl::Span<const int64_t> labels;  // [rows]; -1 is unlabelled
  // All trainers of a step must give the same four.
  float learning_rate = 0;
  std::optional<Margin> margin = std::nullopt;  // instead of the spec's, for this step
  std::optional<float> scale = std::nullopt;
  bool checkpoint = false;  // checkpoint the cluster after this step; it stays until released (ccsctl)
};

struct StepResult {
  int64_t step = 0;
  double loss = 0;                  // mean over the labelled rows of all trainers
  std::vector<float> feature_grad;  // [rows, dim]
  int64_t sampled_classes = 0;      // over the trainer's home shards
};

struct Evaluation {
  double loss = 0;
  int64_t labelled_rows = 0;
  int64_t rank1_hits = 0;  // rows whose own centre has the strictly highest cosine
};

struct Neighbour {
  int64_t class_id = 0;
  float cosine = 0;
};

struct RunOptions {
  std::string run_id = "default";
  int trainer_rank = 0;
  int num_trainers = 1;
  // Gradients are multiplied by num_trainers, because data-parallel training averages them over trainers.
  bool scale_gradient_by_trainers = true;
  // Go on after exactly this step, that of this trainer's own backbone file: the cluster goes back to it if
  // it stands elsewhere, which abandons what it did since. NOT_FOUND names the steps within reach. Absent: go
  // on from wherever the cluster is.
  std::optional<int64_t> resume_step = std::nullopt;
  // The last step whose result this trainer has. Should the cluster be one step further, a reply was lost
  // with the trainer's former life: the first Step, which must then be given that step's input again, brings
  // it. FAILED_PRECONDITION if the cluster is elsewhere. Absent: the last step of the cluster.
  std::optional<int64_t> last_result = std::nullopt;
  // End a run that is open, or this one with another number of trainers, instead of being refused.
  bool takeover = false;
};

// One trainer's part in a run. Thread-safe, but steps are taken one at a time in order. May be destroyed
// while a StepAsync is under way (it then waits for it, at most until its deadline).
class Run {
 public:
  virtual ~Run() = default;

  // Steps applied to the centres; the next Step is position().step + 1.
  virtual Position position() const = 0;

  // One synchronous step. The same input is sent again until the reply is there or the time is up, and is
  // applied exactly once. After DEADLINE_EXCEEDED or UNAVAILABLE the outcome is unknown: call again with the
  // same input. ABORTED: the cluster went back to an earlier step; open the run again.
  virtual absl::StatusOr<StepResult> Step(const StepInput& input) = 0;
  // The same on another thread; what `input` views must stay alive until the future is ready. Steps asked for
  // meanwhile wait for their turn; they are refused (FAILED_PRECONDITION) if one before them fails.
  virtual std::future<absl::StatusOr<StepResult>> StepAsync(const StepInput& input) = 0;

  // Ends the run for all its trainers.
  virtual absl::Status Close() = 0;
};

// A connection to a cluster. Thread-safe. Shards that come back at another address are found, during a call
// too, as long as some shard or one of the addresses given answers.
class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  virtual ~Client() = default;

  virtual const ClusterInfo& info() const = 0;

  // The run may outlive the client.
  virtual absl::StatusOr<std::unique_ptr<Run>> OpenRun(const RunOptions& options) = 0;

  // Loss and rank-1 hits without an update, over all classes or a sample drawn at `sample_rate`. More rows
  // than the model's largest batch, here and in Nearest, are sent in several requests: steps may fall between
  // them.
  virtual absl::StatusOr<Evaluation> Evaluate(absl::Span<const float> features,
                                              absl::Span<const int64_t> labels,
                                              std::optional<double> sample_rate = std::nullopt) = 0;
  // The k centres with the highest cosine to each query, best first: [queries, k].
  virtual absl::StatusOr<std::vector<std::vector<Neighbour>>> Nearest(absl::Span<const float> queries,
                                                                      int k) = 0;
  // Centres of `class_ids`, [class_ids, dim], in their order.
  virtual absl::StatusOr<std::vector<float>> ReadCentres(absl::Span<const int64_t> class_ids) = 0;
  // Writes centres [class_ids, dim] between two steps, all or none, exactly once. Their momentum becomes 0.
  virtual absl::Status WriteCentres(absl::Span<const int64_t> class_ids, absl::Span<const float> centres) = 0;
};

}  // namespace ccs::client

#endif  // CCS_CLIENT_CLIENT_H_
