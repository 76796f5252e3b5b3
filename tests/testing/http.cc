#include "tests/testing/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <sstream>

namespace ccs::testing {

std::string HttpGet(int port, const std::string& path) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string response;
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: localhost\r\n\r\n";
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      send(connection, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    ssize_t count;
    while ((count = recv(connection, buffer, sizeof(buffer), 0)) > 0) response.append(buffer, count);
  }
  close(connection);
  return response;
}

double MetricValue(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with(series) && line.size() > series.size() &&
        (line[series.size()] == ' ' || line[series.size()] == '{')) {
      return std::strtod(line.c_str() + line.rfind(' '), nullptr);
    }
  }
  return std::nan("");
}

}  // namespace ccs::testing
