#include "tests/testing/process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ccs::testing {
namespace {

// Runs `fork` on a thread that lives as long as this process: PR_SET_PDEATHSIG kills a child with the thread
// that forked it.
pid_t OnTheLauncher(std::function<pid_t()> fork) {
  struct Launcher {
    std::mutex mutex;
    std::condition_variable ready;
    std::deque<std::packaged_task<pid_t()>> tasks;
  };
  static Launcher* const launcher = [] {
    auto* started = new Launcher;
    std::thread([started] {
      std::unique_lock lock(started->mutex);
      while (true) {
        started->ready.wait(lock, [started] { return !started->tasks.empty(); });
        started->tasks.front()();
        started->tasks.pop_front();
      }
    }).detach();
    return started;
  }();
  std::packaged_task<pid_t()> task(std::move(fork));
  std::future<pid_t> pid = task.get_future();
  {
    std::lock_guard lock(launcher->mutex);
    launcher->tasks.push_back(std::move(task));
  }
  launcher->ready.notify_one();
  return pid.get();
}

}  // namespace

absl::StatusOr<Process> Process::Start(const std::vector<std::string>& argv, const std::filesystem::path& log,
                                       const std::vector<std::string>& environment) {
  const auto add = [](const std::vector<std::string>& strings, std::vector<char*>* pointers) {
    for (const std::string& text : strings) pointers->push_back(const_cast<char*>(text.c_str()));
  };
  std::vector<char*> arguments;
  add(argv, &arguments);
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  add(environment, &variables);
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  variables.push_back(nullptr);
  const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (output < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", log.string()));
  const pid_t parent = getpid();
  const pid_t pid = OnTheLauncher([&] {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      dup2(output, STDOUT_FILENO);
      dup2(output, STDERR_FILENO);
      execve(arguments[0], arguments.data(), variables.data());
      _exit(127);
    }
    return child;
  });
  close(output);
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  return Process(pid);
}

Process::Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)), exit_(other.exit_) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, -1);
    exit_ = other.exit_;
  }
  return *this;
}

Process::~Process() { Kill(); }

void Process::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Process::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

absl::StatusOr<int> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (Running()) {
    if (absl::Now() > deadline) return absl::DeadlineExceededError("the process is still running");
    absl::SleepFor(absl::Milliseconds(5));
  }
  return exit_;
}

bool Process::Running() {
  if (pid_ < 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == 0) return true;
  exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  pid_ = -1;
  return false;
}

bool Process::Stopped() const {
  std::ifstream stat(absl::StrCat("/proc/", pid_, "/stat"));
  std::string text;
  std::getline(stat, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.substr(name_end, 4) == ") T ";
}

int64_t Process::StatusBytes(const std::string& field) const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  std::string word;
  int64_t kibibytes = 0;
  while (status >> word) {
    if (word == field) status >> kibibytes;
  }
  return kibibytes << 10;
}

namespace {

// Nobody listens there at present.
bool IsFree(int port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound = bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(listener);
  return bound;
}

// No other test process has been given the port. The lock lasts as long as this process.
bool Reserve(int port) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / absl::StrCat("ccs-test-port-", port);
  const int lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock < 0) return false;
  if (flock(lock, LOCK_EX | LOCK_NB) == 0) return true;
  close(lock);
  return false;
}

struct Ports {
  std::mutex mutex;
  std::mt19937 random{std::random_device{}()};
  std::vector<int> returned;
};

Ports& AllPorts() {
  static Ports ports;
  return ports;
}

}  // namespace

int FreePort() {
  Ports& ports = AllPorts();
  std::lock_guard lock(ports.mutex);
  for (auto port = ports.returned.begin(); port != ports.returned.end(); ++port) {
    if (!IsFree(*port)) continue;
    const int free = *port;
    ports.returned.erase(port);
    return free;
  }
  // Below the ports that the system gives to connections and to listeners who do not ask for one.
  std::uniform_int_distribution<int> any(15000, 32000);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int port = any(ports.random);
    if (Reserve(port) && IsFree(port)) return port;
  }
  return 0;
}

void ReturnPort(int port) {
  std::lock_guard lock(AllPorts().mutex);
  AllPorts().returned.push_back(port);
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TempDir::TempDir(const std::filesystem::path& parent) {
  std::string name =
      ((parent.empty() ? std::filesystem::temp_directory_path() : parent) / "ccs-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ccs::testing
