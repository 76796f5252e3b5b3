#ifndef CCS_TESTS_SERVER_STORAGE_CAPTURED_LOG_H_
#define CCS_TESTS_SERVER_STORAGE_CAPTURED_LOG_H_

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

namespace ccs {

// Collects what is logged.
class CapturedLog {
 public:
  CapturedLog() {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "captured", std::make_shared<spdlog::sinks::ostream_sink_st>(stream_, /*force_flush=*/true)));
  }
  ~CapturedLog() { spdlog::set_default_logger(previous_); }
  std::string text() const { return stream_.str(); }

 private:
  std::ostringstream stream_;
  const std::shared_ptr<spdlog::logger> previous_ = spdlog::default_logger();
};

}  // namespace ccs

#endif  // CCS_TESTS_SERVER_STORAGE_CAPTURED_LOG_H_
