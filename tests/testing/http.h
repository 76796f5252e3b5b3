// A plain HTTP GET, to scrape /metrics.
#ifndef CCS_TESTS_TESTING_HTTP_H_
#define CCS_TESTS_TESTING_HTTP_H_

#include <string>

namespace ccs::testing {

// The whole response of http://127.0.0.1:PORT/PATH, headers included; empty if nobody answers.
std::string HttpGet(int port, const std::string& path);

// The value of the first sample whose line begins with `series` ("name" or "name{labels}") in Prometheus'
// text format; NaN if there is none.
double MetricValue(const std::string& text, const std::string& series);

}  // namespace ccs::testing

#endif  // CCS_TESTS_TESTING_HTTP_H_
