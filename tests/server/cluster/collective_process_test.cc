// Gloo between processes, one of which is killed or stopped while the others wait for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "server/cluster/collective.h"

namespace ccs {
namespace {

absl::Time Late() { return absl::Now() + absl::Seconds(50); }

void WriteBlob(int fd, const std::string& blob) {
  const size_t length = blob.size();
  EXPECT_EQ(write(fd, &length, sizeof(length)), static_cast<ssize_t>(sizeof(length)));
  EXPECT_EQ(write(fd, blob.data(), length), static_cast<ssize_t>(length));
}

std::string ReadBlob(int fd) {
  size_t length = 0;
  EXPECT_EQ(recv(fd, &length, sizeof(length), MSG_WAITALL), static_cast<ssize_t>(sizeof(length)));
  std::string blob(length, '\0');
  EXPECT_EQ(recv(fd, blob.data(), length, MSG_WAITALL), static_cast<ssize_t>(length));
  return blob;
}

// More than the sockets hold, so that nobody can send it to a rank that does not take part.
constexpr size_t kBytes = 32 << 20;

// Every rank sends ones.
struct BigGather {
  explicit BigGather(Collective& member) : member(member), received(kBytes * member.size()) {}
  absl::Status Run(absl::Time deadline) {
    return member.AllGather(send.data(), received.data(), std::vector<size_t>(member.size(), kBytes),
                            deadline);
  }
  // Returns once the first byte of this rank has arrived.
  void AwaitFirstByteOf(int rank) {
    while (std::atomic_ref(received[kBytes * rank]).load() == 0) absl::SleepFor(absl::Milliseconds(1));
  }

  Collective& member;
  const std::vector<char> send = std::vector<char>(kBytes, 1);
  std::vector<char> received;
};

// Rank 0 is this process, the others its children. The rendezvous goes through a socket to each child.
class ProcessGroup {
 public:
  // Forks before this process has any thread. A child ends after `in_child`.
  ProcessGroup(int size, const std::function<void(Collective&)>& in_child) {
    for (int rank = 1; rank < size; ++rank) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      const pid_t child = fork();
      if (child == 0) {
        const Rendezvous rendezvous = [&](std::string blob, absl::Time) {
          WriteBlob(ends[1], blob);
          std::vector<std::string> blobs;
          for (int i = 0; i < size; ++i) blobs.push_back(ReadBlob(ends[1]));
          return blobs;
        };
        auto member = MakeCpuCollective(Options(rank, size), rendezvous);
        if (member.ok()) in_child(**member);
        _exit(member.ok() ? 0 : 1);
      }
      close(ends[1]);
      sockets_.push_back(ends[0]);
      children_.push_back(child);
    }
    const Rendezvous hub = [this](std::string own, absl::Time) {
      std::vector<std::string> blobs = {own};
      for (int socket : sockets_) blobs.push_back(ReadBlob(socket));
      for (int socket : sockets_) {
        for (const std::string& blob : blobs) WriteBlob(socket, blob);
      }
      return blobs;
    };
    auto member = MakeCpuCollective(Options(0, size), hub);
    EXPECT_TRUE(member.ok()) << member.status();
    if (member.ok()) own_ = *std::move(member);
  }

  ~ProcessGroup() {
    own_.reset();
    for (pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    for (int socket : sockets_) close(socket);
  }

  Collective& own() { return *own_; }
  pid_t child(int rank) const { return children_[rank - 1]; }

 private:
  static CollectiveOptions Options(int rank, int size) {
    return {.rank = rank, .size = size, .host = "127.0.0.1", .deadline = Late()};
  }

  std::vector<int> sockets_;
  std::vector<pid_t> children_;
  std::unique_ptr<Collective> own_;
};

TEST(GlooProcessTest, GathersBetweenProcesses) {
  ProcessGroup group(3, [](Collective& member) { BigGather(member).Run(Late()).IgnoreError(); });
  BigGather gather(group.own());
  EXPECT_TRUE(gather.Run(Late()).ok());
  EXPECT_TRUE(gather.received == std::vector<char>(3 * kBytes, 1));
}

TEST(GlooProcessTest, APeerKilledHalfWayThroughATransferIsUnavailableLongBeforeTheDeadline) {
  absl::Status status;
  // Again if the transfer was faster than the signal.
  for (int attempt = 0; attempt < 5 && status.ok(); ++attempt) {
    ProcessGroup group(2, [](Collective& member) { BigGather(member).Run(Late()).IgnoreError(); });
    BigGather gather(group.own());
    const absl::Time start = absl::Now();
    std::jthread blocked([&] { status = gather.Run(Late()); });
    gather.AwaitFirstByteOf(1);
    kill(group.child(1), SIGKILL);
    blocked.join();
    EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(GlooProcessTest, APeerKilledBetweenCallsIsUnavailable) {
  ProcessGroup group(2, [](Collective&) { pause(); });
  kill(group.child(1), SIGKILL);
  EXPECT_EQ(BigGather(group.own()).Run(Late()).code(), absl::StatusCode::kUnavailable);
}

TEST(GlooProcessTest, AStoppedPeerMissesTheDeadline) {
  ProcessGroup group(2, [](Collective&) { pause(); });
  kill(group.child(1), SIGSTOP);
  ASSERT_EQ(waitpid(group.child(1), nullptr, WUNTRACED), group.child(1));
  const absl::Status status = BigGather(group.own()).Run(absl::Now() + absl::Milliseconds(300));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

}  // namespace
}  // namespace ccs
