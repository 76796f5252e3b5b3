// Time, chance and what is to happen: a simulated run is a pure function of its seed.
#ifndef CCS_TESTS_SERVER_SIMULATION_WORLD_H_
#define CCS_TESTS_SERVER_SIMULATION_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ccs::simulation {

// Not thread-safe; nothing here has threads.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  absl::Time now() const { return now_; }
  int Below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  bool Chance(double probability) { return std::uniform_real_distribution<>()(random_) < probability; }
  uint64_t Bits() { return random_(); }
  // Mostly short, sometimes long enough to run into time-outs.
  absl::Duration Delay() {
    return Chance(0.02) ? absl::Milliseconds(Below(3000)) : absl::Milliseconds(1 + Below(20));
  }

  void After(absl::Duration delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }
  // Of what is due at one time, the first one said comes first.
  void At(absl::Time when, std::function<void()> what) {
    events_.emplace(std::pair(when, ++events_said_), std::move(what));
  }
  // Until `end`, or until nothing is left to happen.
  void RunUntil(absl::Time end) {
    while (!events_.empty() && events_.begin()->first.first <= end) {
      auto next = events_.extract(events_.begin());
      now_ = next.key().first;
      next.mapped()();
    }
    now_ = end;
  }

 private:
  std::mt19937_64 random_;
  absl::Time now_ = absl::Now();  // the coordinator's clock begins there too
  uint64_t events_said_ = 0;
  std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> events_;
};

// Order matters.
inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15 + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace ccs::simulation

#endif  // CCS_TESTS_SERVER_SIMULATION_WORLD_H_
