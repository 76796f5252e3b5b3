#include "client/examples/glyphs/backbone_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace glyphs {
namespace {

constexpr char kPrefix[] = "backbone-";
constexpr char kSuffix[] = ".pt";

absl::Status Sync(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  const int failed = fsync(file);
  const int error = errno;
  close(file);
  return failed == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat("cannot sync ", path));
}

}  // namespace

absl::StatusOr<BackboneFiles> BackboneFiles::Open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make the directory ", directory));
  return BackboneFiles(directory);
}

std::string BackboneFiles::PathOf(int64_t step) const {
  return absl::StrCat(directory_, "/", kPrefix, step, kSuffix);
}

std::vector<int64_t> BackboneFiles::Steps() const {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
    const std::string file_name = entry.path().filename().string();
    absl::string_view name = file_name;
    int64_t step = 0;
    if (absl::ConsumePrefix(&name, kPrefix) && absl::ConsumeSuffix(&name, kSuffix) &&
        absl::SimpleAtoi(name, &step)) {
      steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::string> BackboneFiles::Resume(int64_t cluster_step) {
  const std::vector<int64_t> steps = Steps();
  if (std::find(steps.begin(), steps.end(), cluster_step) == steps.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the cluster is at step ", cluster_step, ", but ", directory_, " has ",
        steps.empty() ? "no backbone file"
                      : absl::StrCat("backbone files of steps ", absl::StrJoin(steps, ", ")),
        ": start the cluster with --resume=STEP of one that both have, or both from the beginning"));
  }
  for (int64_t step : steps) {
    if (step > cluster_step) std::remove(PathOf(step).c_str());
  }
  return PathOf(cluster_step);
}

absl::Status BackboneFiles::Write(int64_t step,
                                  const std::function<absl::Status(const std::string& path)>& write) {
  const std::string path = PathOf(step);
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = write(temporary);
  if (status.ok()) status = Sync(temporary);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot rename ", temporary));
  }
  if (!status.ok()) {
    std::remove(temporary.c_str());
    return status;
  }
  std::vector<int64_t> steps = Steps();
  for (size_t i = 0; i + kKept < steps.size(); ++i) std::remove(PathOf(steps[i]).c_str());
  return Sync(directory_);
}

}  // namespace glyphs
