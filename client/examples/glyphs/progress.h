// The progress line: rewritten in place on a terminal, a line every few seconds elsewhere.
#ifndef CCS_CLIENT_EXAMPLES_GLYPHS_PROGRESS_H_
#define CCS_CLIENT_EXAMPLES_GLYPHS_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "client/examples/glyphs/schedule.h"

namespace glyphs {

struct ProgressReport {
  int64_t epoch = 0;
  int64_t epochs = 0;
  int64_t step = 0;
  int64_t num_steps = 0;
  double loss = 0;           // mean of the steps since the last line
  double samples_per_s = 0;  // the same
  double head_share = 0;     // of the time: waiting for the service
  double eta_s = 0;
};

std::string ProgressLine(const ProgressReport& report);

// A whole training, or the part of it since a resume.
struct TrainingSummary {
  int64_t steps = 0;
  double seconds = 0;
  double loss = 0;  // as in the last line
  double samples_per_s = 0;
  double head_share = 0;
};

// Gathers the steps of a training. Not thread-safe.
class Progress {
 public:
  Progress(const Schedule& schedule, int64_t epochs);

  void Step(int64_t step, int64_t rows, double loss, double head_s);
  // Prints what is left to print and ends the line.
  TrainingSummary Finish();

 private:
  using Clock = std::chrono::steady_clock;
  struct Sums {
    int64_t steps = 0, rows = 0;
    double loss = 0, head_s = 0;
  };
  void Print(Clock::time_point now);

  const Schedule& schedule_;
  const int64_t epochs_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_print_ = start_;
  int64_t step_ = 0;
  Sums recent_, total_;  // since the last line, in all
  double last_loss_ = 0;
};

}  // namespace glyphs

#endif  // CCS_CLIENT_EXAMPLES_GLYPHS_PROGRESS_H_
