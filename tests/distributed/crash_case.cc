#include "tests/distributed/crash_case.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "tests/distributed/shard_rows.h"
#include "tests/testing/process_cluster.h"

namespace ccs::testing {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kHeartbeatTimeout = absl::Seconds(1);
// The time-out, and what a machine that is busy with other cases may add.
constexpr absl::Duration kLongestNotice = absl::Seconds(10);
constexpr absl::Duration kLongestCase = absl::Seconds(100);
constexpr absl::Duration kPoll = absl::Milliseconds(5);
constexpr absl::Duration kTrainerSleep = absl::Milliseconds(500);
constexpr int kCallTimeoutSeconds = 60;
constexpr absl::string_view kWaiting = "waiting for ranks ";

class CrashCase {
 public:
  explicit CrashCase(const CrashPlan& plan)
      : plan_(plan),
        cluster_(
            {.server_binary = CCS_SERVER_WITH_FAULTS_BINARY,
             .num_shards = plan.shards,
             .model = CrashModel(),
             .flags = {"--heartbeat_interval_ms=100",
                       absl::StrCat("--heartbeat_timeout_ms=", absl::ToInt64Milliseconds(kHeartbeatTimeout)),
                       absl::StrCat("--checkpoint_every=", plan.checkpoint_every), "--resume=latest",
                       absl::StrCat("--checkpoint_dir=", (directory_.path() / "checkpoints").string())},
             .threads = 1},
            directory_.path()),
        shards_(plan.shards),
        trainers_(plan.trainers),
        hit_(plan.blows.size()) {}

  CrashResult Run();

 private:
  struct Shard {
    size_t log_before = 0;        // bytes of former lives
    std::optional<size_t> armed;  // the blow that its fault point will deal
    std::optional<absl::Time> stopped;
    std::optional<size_t> stopped_by;
    std::vector<size_t> logs_when_stopped;
  };
  struct Trainer {
    std::optional<Process> process;
    std::vector<fs::path> traces;  // one a life; the last one is current
    std::optional<absl::Time> wake;
    bool killed = false;
    bool done = false;
  };
  struct Zombie {
    Process process;
    int rank;
    fs::path log;
    int64_t steps;  // that it had taken
    bool woken = false;
  };

  void Problem(const std::string& what) { result_.problems.push_back(what); }
  void StartShard(int rank, bool again);
  void StartTrainer(int rank);
  bool TrainersAreDone() const {
    return std::all_of(trainers_.begin(), trainers_.end(), [](const Trainer& t) { return t.done; });
  }
  bool NobodyIsStopped() const {
    return std::none_of(shards_.begin(), shards_.end(), [](const Shard& s) { return s.stopped.has_value(); });
  }
  void Look();
  void LookAtShard(int rank);
  void ShardEnded(int rank);
  void LookAtStopped(int rank);
  bool OthersNoticed(int rank) const;
  void LookAtTrainer(int rank);
  void WakeZombies();
  void DealTimedBlows();
  // Since it was started last.
  bool Serves(int rank) const;
  void Deal(size_t index);
  void KillAndRestart(int rank);
  void DealTrainer(const Blow& blow);
  bool ReadState();
  void BuryZombies();
  void Conclude();
  fs::path TrainerLog(int rank, size_t life) const {
    return directory_.path() / absl::StrCat("trainer-", rank, "-", life, ".log");
  }

  const CrashPlan plan_;
  TempDir directory_;
  ProcessCluster cluster_;
  std::vector<Shard> shards_;
  std::vector<Trainer> trainers_;
  std::vector<Zombie> zombies_;
  std::vector<bool> hit_;
  std::vector<std::pair<size_t, absl::Time>> due_;  // timed blows whose step has come
  size_t begun_ = 0;                                // timed blows that are due or dealt, in order
  CrashResult result_;
};

void CrashCase::StartShard(int rank, bool again) {
  std::vector<std::string> environment;
  shards_[rank] = {};
  shards_[rank].log_before = cluster_.log(rank).size();
  for (size_t i = 0; i < plan_.blows.size(); ++i) {
    const Blow& blow = plan_.blows[i];
    if (blow.point.empty() || blow.rank != rank || blow.after_restart != again || hit_[i]) continue;
    shards_[rank].armed = i;
    environment = {
        absl::StrCat("CCS_FAULT=", blow.point, ":", blow.arrival, ":", blow.stop ? "stop" : "kill")};
  }
  const absl::Status started = cluster_.StartShard(rank, {}, environment);
  if (!started.ok()) Problem(started.ToString());
}

void CrashCase::StartTrainer(int rank) {
  Trainer& trainer = trainers_[rank];
  const size_t life = trainer.traces.size();
  const fs::path trace = directory_.path() / absl::StrCat("trace-", rank, "-", life);
  if (life > 0) {
    std::error_code ignored;  // a former life without a step left none
    fs::copy_file(trainer.traces.back(), trace, ignored);
  }
  trainer.traces.push_back(trace);
  std::vector<std::string> argv = {CCS_CRASH_TRAINER_BINARY,  trace.string(),
                                   absl::StrCat(rank),        absl::StrCat(plan_.trainers),
                                   absl::StrCat(plan_.steps), absl::StrCat(kCallTimeoutSeconds)};
  for (int shard = 0; shard < plan_.shards; ++shard) argv.push_back(cluster_.address(shard));
  auto process = Process::Start(argv, TrainerLog(rank, life));
  if (!process.ok()) return Problem(process.status().ToString());
  trainer.process.emplace(*std::move(process));
  trainer.killed = false;
}

CrashResult CrashCase::Run() {
  for (int rank = 0; rank < plan_.shards; ++rank) StartShard(rank, /*again=*/false);
  for (int rank = 0; rank < plan_.trainers; ++rank) StartTrainer(rank);
  const absl::Time end = absl::Now() + kLongestCase;
  bool read = false;
  while (!read && result_.problems.empty()) {
    if (absl::Now() > end) {
      Problem(absl::StrCat("not over after ", absl::FormatDuration(kLongestCase)));
      break;
    }
    Look();
    if (TrainersAreDone() && NobodyIsStopped()) read = ReadState();
    absl::SleepFor(kPoll);
  }
  if (result_.problems.empty()) BuryZombies();
  Conclude();
  return std::move(result_);
}

void CrashCase::Look() {
  for (int rank = 0; rank < plan_.shards; ++rank) LookAtShard(rank);
  for (int rank = 0; rank < plan_.trainers; ++rank) LookAtTrainer(rank);
  WakeZombies();
  DealTimedBlows();
}

void CrashCase::LookAtShard(int rank) {
  Shard& shard = shards_[rank];
  if (!cluster_.shard(rank).Running()) return ShardEnded(rank);
  if (shard.stopped) return LookAtStopped(rank);
  if (!cluster_.shard(rank).Stopped()) return;
  if (shard.armed) {
    shard.stopped_by = std::exchange(shard.armed, std::nullopt);
    hit_[*shard.stopped_by] = true;
  }
  shard.stopped = absl::Now();
  shard.logs_when_stopped.clear();
  for (int other = 0; other < plan_.shards; ++other) {
    shard.logs_when_stopped.push_back(cluster_.log(other).size());
  }
}

void CrashCase::ShardEnded(int rank) {
  const auto blow = std::exchange(shards_[rank].armed, std::nullopt);
  const int exit = cluster_.shard(rank).Wait(absl::ZeroDuration()).value_or(-1);
  if (!blow || exit != 128 + SIGKILL) {
    return Problem(absl::StrCat("shard ", rank, " ended with ", exit));
  }
  hit_[*blow] = true;
  StartShard(rank, /*again=*/true);
}

void CrashCase::LookAtStopped(int rank) {
  Shard& shard = shards_[rank];
  const absl::Duration time = absl::Now() - *shard.stopped;
  // A shard alone is missed by nobody.
  const bool over = plan_.shards == 1 ? time > kHeartbeatTimeout : OthersNoticed(rank);
  if (!over && time < kLongestNotice) return;
  if (!over) Problem(absl::StrCat("nobody has noticed that shard ", rank, " was stopped"));
  if (plan_.shards > 1) {
    result_.longest_notice_s = std::max(result_.longest_notice_s, absl::ToDoubleSeconds(time));
  }
  shard.stopped.reset();
  if (!plan_.blows[*std::exchange(shard.stopped_by, std::nullopt)].replace) {
    return cluster_.shard(rank).Signal(SIGCONT);
  }
  KillAndRestart(rank);
}

bool CrashCase::OthersNoticed(int rank) const {
  for (int other = 0; other < plan_.shards; ++other) {
    if (other == rank) continue;
    const std::string log = cluster_.log(other).substr(shards_[rank].logs_when_stopped[other]);
    if (absl::StrContains(log, rank == 0 ? "the coordinator was silent for" : "was silent for")) return true;
    // A coordinator that is new since only misses it.
    for (const absl::string_view line : absl::StrSplit(log, '\n')) {
      const auto waiting = line.find(kWaiting);
      if (waiting == absl::string_view::npos) continue;
      for (const absl::string_view missed : absl::StrSplit(line.substr(waiting + kWaiting.size()), ", ")) {
        if (missed == absl::StrCat(rank)) return true;
      }
    }
  }
  return false;
}

void CrashCase::LookAtTrainer(int rank) {
  Trainer& trainer = trainers_[rank];
  if (trainer.done || !trainer.process) return;
  if (trainer.wake && absl::Now() > *trainer.wake) {
    trainer.wake.reset();
    trainer.process->Signal(SIGCONT);
  }
  if (trainer.process->Running()) return;
  const int exit = trainer.process->Wait(absl::ZeroDuration()).value_or(-1);
  trainer.done = exit == 0;
  if (trainer.done) return;
  if (!trainer.killed) return Problem(absl::StrCat("trainer ", rank, " ended with ", exit));
  StartTrainer(rank);
}

void CrashCase::WakeZombies() {
  for (Zombie& zombie : zombies_) {
    // Before its successor has opened the run it would rightly train on.
    if (zombie.woken || TraceLength(trainers_[zombie.rank].traces.back()) <= zombie.steps) continue;
    zombie.woken = true;
    zombie.process.Signal(SIGCONT);
  }
}

void CrashCase::DealTimedBlows() {
  const absl::Time now = absl::Now();
  for (; begun_ < plan_.blows.size(); ++begun_) {
    const Blow& blow = plan_.blows[begun_];
    if (!blow.point.empty()) continue;
    if (TraceLength(trainers_[0].traces.back()) < blow.at_step) break;
    due_.emplace_back(begun_, now + absl::Microseconds(blow.delay_us));
  }
  for (auto next = due_.begin(); next != due_.end();) {
    const Blow& blow = plan_.blows[next->first];
    // Only who belongs to the group is missed.
    const bool too_early = blow.stop && blow.victim == Blow::Victim::kShard && !Serves(blow.rank);
    if (now < next->second || too_early) {
      ++next;
      continue;
    }
    const size_t index = next->first;
    next = due_.erase(next);
    Deal(index);
  }
}

bool CrashCase::Serves(int rank) const {
  return absl::StrContains(cluster_.log(rank).substr(shards_[rank].log_before), ": serving");
}

void CrashCase::Deal(size_t index) {
  const Blow& blow = plan_.blows[index];
  hit_[index] = true;
  if (blow.victim == Blow::Victim::kTrainer) return DealTrainer(blow);
  if (shards_[blow.rank].stopped_by) return;  // it has its blow
  if (!blow.stop) return KillAndRestart(blow.rank);
  cluster_.shard(blow.rank).Signal(SIGSTOP);
  shards_[blow.rank].stopped_by = index;
}

void CrashCase::KillAndRestart(int rank) {
  cluster_.shard(rank).Signal(SIGKILL);
  (void)cluster_.shard(rank).Wait(absl::Seconds(10));
  StartShard(rank, /*again=*/true);
}

void CrashCase::DealTrainer(const Blow& blow) {
  Trainer& trainer = trainers_[blow.rank];
  if (trainer.done || !trainer.process) return;
  if (!blow.stop) {
    trainer.killed = true;
    return trainer.process->Signal(SIGKILL);
  }
  trainer.process->Signal(SIGSTOP);
  if (!blow.replace) {
    trainer.wake = absl::Now() + kTrainerSleep;
    return;
  }
  zombies_.push_back({*std::exchange(trainer.process, std::nullopt), blow.rank,
                      TrainerLog(blow.rank, trainer.traces.size() - 1), 0});
  StartTrainer(blow.rank);
  zombies_.back().steps = TraceLength(trainer.traces.back());
}

bool CrashCase::ReadState() {
  const auto client = cluster_.Connect(absl::Seconds(1));
  if (!client.ok()) return false;
  CrashResult read;
  for (const client::Shard& shard : (*client)->info().shards) {
    const auto rows = ReadShardRows(shard.address, shard.class_start, shard.num_classes, absl::Seconds(1));
    if (!rows.ok()) return false;
    read.lineage = rows->lineage;
    read.weight.insert(read.weight.end(), rows->weight.begin(), rows->weight.end());
    read.momentum.insert(read.momentum.end(), rows->momentum.begin(), rows->momentum.end());
    if (rows->step != plan_.steps) return false;  // in its last pass 2
  }
  result_.lineage = read.lineage;
  result_.weight = std::move(read.weight);
  result_.momentum = std::move(read.momentum);
  return true;
}

// They were refused, at the latest when they wanted another step.
void CrashCase::BuryZombies() {
  for (Zombie& zombie : zombies_) {
    zombie.process.Signal(SIGCONT);
    const absl::StatusOr<int> exit = zombie.process.Wait(absl::Seconds(20));
    if (!exit.ok()) {
      Problem(absl::StrCat("the replaced trainer ", zombie.rank, " goes on"));
    } else if (*exit != 0 && !absl::StrContains(ReadFile(zombie.log), "was started again since")) {
      Problem(absl::StrCat("the replaced trainer ", zombie.rank, " ended with ", *exit, ": ",
                           ReadFile(zombie.log)));
    }
  }
}

void CrashCase::Conclude() {
  for (const Trainer& trainer : trainers_) {
    result_.traces.push_back(ReadTrace(trainer.traces.back()));
    for (const fs::path& former : trainer.traces) {
      const Trace trace = ReadTrace(former);
      if (trace.size() > result_.traces.back().size() ||
          !std::equal(trace.begin(), trace.end(), result_.traces.back().begin())) {
        Problem("a former life of a trainer was given something else");
      }
    }
  }
  for (size_t i = 0; i < hit_.size(); ++i) {
    if (!hit_[i]) Problem(absl::StrCat("never happened: ", plan_.blows[i].ToString()));
  }
  if (result_.problems.empty()) return;
  for (int rank = 0; rank < plan_.shards; ++rank) {
    Problem(absl::StrCat("shard ", rank, "'s log:\n", cluster_.log(rank)));
  }
  for (int rank = 0; rank < plan_.trainers; ++rank) {
    for (size_t life = 0; life < trainers_[rank].traces.size(); ++life) {
      Problem(absl::StrCat("trainer ", rank, "'s log ", life, ": ", ReadFile(TrainerLog(rank, life))));
    }
  }
}

}  // namespace

std::string Blow::ToString() const {
  std::string text =
      absl::StrCat(victim == Victim::kShard ? "shard " : "trainer ", rank,
                   stop ? (replace ? " stopped and replaced" : " stopped for a while") : " killed");
  absl::StrAppend(&text, point.empty() ? absl::StrCat(" ", delay_us, " us after step ", at_step)
                                       : absl::StrCat(" at ", point, ", arrival ", arrival));
  return text;
}

std::string CrashPlan::ToString() const {
  return absl::StrCat(
      shards, " shards, ", trainers, " trainers, ", steps, " steps, a checkpoint every ", checkpoint_every,
      ": ",
      absl::StrJoin(blows, "; ", [](std::string* out, const Blow& blow) { out->append(blow.ToString()); }));
}

CrashResult RunCrashPlan(const CrashPlan& plan) { return CrashCase(plan).Run(); }

std::vector<std::string> Differences(const CrashResult& got, const CrashResult& want) {
  std::vector<std::string> differences;
  for (size_t trainer = 0; trainer < want.traces.size(); ++trainer) {
    const Trace& a = got.traces[trainer];
    const Trace& b = want.traces[trainer];
    const auto [first, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    if (first == a.end() && other == b.end()) continue;
    differences.push_back(absl::StrCat("trainer ", trainer, " was given something else, or nothing, in step ",
                                       first - a.begin() + 1));
  }
  if (got.weight != want.weight) differences.push_back("the weights differ");
  if (got.momentum != want.momentum) differences.push_back("the momentum differs");
  if (got.lineage != want.lineage) {
    differences.push_back(absl::StrCat("lineage ", want.lineage, " has become ", got.lineage));
  }
  return differences;
}

}  // namespace ccs::testing
