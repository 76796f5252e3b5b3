#include "client/examples/glyphs/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace glyphs {
namespace {

constexpr double kTerminalInterval_s = 0.5;
constexpr double kLogInterval_s = 5;

double SecondsBetween(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

std::string ProgressLine(const ProgressReport& report) {
  const auto eta_s = static_cast<int64_t>(std::lround(report.eta_s));
  return absl::StrFormat("epoch %d/%d  step %d/%d  loss %.3f  %.0f samples/s  head %.0f %%  ETA %d:%02d",
                         report.epoch, report.epochs, report.step, report.num_steps, report.loss,
                         report.samples_per_s, 100 * report.head_share, eta_s / 60, eta_s % 60);
}

Progress::Progress(const Schedule& schedule, int64_t epochs)
    : schedule_(schedule), epochs_(epochs), terminal_(isatty(STDOUT_FILENO) == 1) {}

void Progress::Step(int64_t step, int64_t rows, double loss, double head_s) {
  step_ = step;
  for (Sums* sums : {&recent_, &total_}) {
    ++sums->steps;
    sums->rows += rows;
    sums->loss += loss;
    sums->head_s += head_s;
  }
  const Clock::time_point now = Clock::now();
  if (SecondsBetween(last_print_, now) >= (terminal_ ? kTerminalInterval_s : kLogInterval_s)) Print(now);
}

void Progress::Print(Clock::time_point now) {
  const double interval_s = SecondsBetween(last_print_, now);
  last_loss_ = recent_.loss / static_cast<double>(recent_.steps);
  const double step_s = interval_s / static_cast<double>(recent_.steps);
  const std::string line =
      ProgressLine({.epoch = schedule_.epoch(step_),
                    .epochs = epochs_,
                    .step = step_,
                    .num_steps = schedule_.num_steps(),
                    .loss = last_loss_,
                    .samples_per_s = static_cast<double>(recent_.rows) / interval_s,
                    .head_share = recent_.head_s / interval_s,
                    .eta_s = step_s * static_cast<double>(schedule_.num_steps() - step_)});
  // Back to the start of the line, and clear what a longer one before left behind.
  std::printf(terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
  std::fflush(stdout);
  recent_ = {};
  last_print_ = now;
}

TrainingSummary Progress::Finish() {
  const Clock::time_point now = Clock::now();
  if (recent_.steps > 0) Print(now);
  if (terminal_ && total_.steps > 0) std::printf("\n");
  const double seconds = SecondsBetween(start_, now);
  return {.steps = total_.steps,
          .seconds = seconds,
          .loss = last_loss_,
          .samples_per_s = static_cast<double>(total_.rows) / seconds,
          .head_share = total_.head_s / seconds};
}

}  // namespace glyphs
