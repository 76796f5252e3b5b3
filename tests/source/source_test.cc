// Checks the sources themselves: who may include what, nothing that is not built, a README in every room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

const fs::path kRoot = CCS_SOURCE_DIR;
constexpr bool kExamplesAreBuilt = CCS_EXAMPLES_ARE_BUILT;
constexpr std::string_view kFolders[] = {"proto", "server", "client", "kernels", "deploy", "tests", "docker"};

struct Source {
  std::string path;  // from the root
  std::string text;
};

std::string Read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool StartsWithAny(std::string_view text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& p) { return text.starts_with(p); });
}

std::vector<Source> Sources(const std::vector<std::string>& extensions) {
  std::vector<Source> sources;
  for (std::string_view folder : kFolders) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const std::string extension = entry.path().extension().string();
      if (std::find(extensions.begin(), extensions.end(), extension) == extensions.end()) continue;
      sources.push_back({fs::relative(entry.path(), kRoot).generic_string(), Read(entry.path())});
    }
  }
  return sources;
}

std::vector<std::string> Includes(const std::string& text) {
  static const std::regex kInclude(R"re(#\s*include\s*[<"]([^>"]+)[>"])re");
  std::vector<std::string> includes;
  for (std::sregex_iterator it(text.begin(), text.end(), kInclude), end; it != end; ++it) {
    includes.push_back((*it)[1]);
  }
  return includes;
}

// What starts with one of `headers` may only be included under one of `homes`, within one of `realm`.
struct Rule {
  std::string why;
  std::vector<std::string> headers;
  std::vector<std::string> realm;
  std::vector<std::string> homes;
};

const std::vector<Rule>& Rules() {
  static const std::vector<Rule> kRules = {
      {"kernels know nothing of servers, clients and transports",
       {"server/", "client/", "ccs/", "grpc", "google/protobuf", "rocksdb/", "gloo/", "nccl", "prometheus/"},
       {"kernels/"},
       {}},
      {"a client includes nothing of the server", {"server/", "kernels/"}, {"client/"}, {}},
      {"messages stay at the edges",
       {"ccs/v1/", "google/protobuf", "grpc"},
       {"server/"},
       {"server/rpc/", "server/cluster/", "server/model_spec_proto."}},
      {"RocksDB is storage's business", {"rocksdb/"}, {"server/", "client/"}, {"server/storage/"}},
      {"Prometheus is metrics' business", {"prometheus/"}, {"server/", "client/"}, {"server/metrics/"}},
      {"collectives are the cluster's business",
       {"gloo/", "nccl"},
       {"server/", "client/"},
       {"server/cluster/"}},
      {"the product includes nothing of its tests", {"tests/"}, {"server/", "client/", "kernels/"}, {}},
      {"torch is the example's business",
       {"torch/", "ATen/"},
       {"server/", "client/", "kernels/", "tests/"},
       {"client/examples/"}},
  };
  return kRules;
}

std::vector<std::string> BrokenRules(const Source& source) {
  std::vector<std::string> broken;
  for (const Rule& rule : Rules()) {
    if (!StartsWithAny(source.path, rule.realm) || StartsWithAny(source.path, rule.homes)) continue;
    for (const std::string& include : Includes(source.text)) {
      if (StartsWithAny(include, rule.headers)) {
        broken.push_back(source.path + " includes " + include + ": " + rule.why);
      }
    }
  }
  return broken;
}

TEST(SourceRules, EveryIncludeKeepsToWhoMayKnowWhat) {
  std::vector<std::string> broken;
  for (const Source& source : Sources({".h", ".cc", ".cu", ".cuh"})) {
    for (std::string& line : BrokenRules(source)) broken.push_back(std::move(line));
  }
  EXPECT_THAT(broken, IsEmpty());
}

TEST(SourceRules, NoticeAnIncludeOutOfPlace) {
  EXPECT_EQ(BrokenRules({"kernels/cpu/x.cc", "#include <grpcpp/grpcpp.h>\n"}).size(), 1u);
  EXPECT_EQ(BrokenRules({"client/x.cc", "#include \"server/options.h\"\n"}).size(), 1u);
  EXPECT_EQ(BrokenRules({"server/engine/x.h", "#  include <ccs/v1/model.pb.h>\n"}).size(), 1u);
  EXPECT_EQ(BrokenRules({"server/rpc/x.cc", "#include <rocksdb/db.h>\n"}).size(), 1u);
  EXPECT_EQ(BrokenRules({"server/storage/x.cc", "#include <rocksdb/db.h>\n"}).size(), 0u);
}

// Sources that no build command names.
std::vector<std::string> Orphans(const std::vector<Source>& sources, const std::string& commands) {
  std::vector<std::string> orphans;
  for (const Source& source : sources) {
    if (source.path.starts_with("tests/client/installed/")) continue;  // a project of its own
    if (!kExamplesAreBuilt && StartsWithAny(source.path, {"client/examples/", "tests/client/examples/"}))
      continue;
    const std::string quoted = "\"" + (kRoot / source.path).generic_string() + "\"";
    if (commands.find(quoted) == std::string::npos) orphans.push_back(source.path);
  }
  return orphans;
}

TEST(SourceRules, EverySourceIsBuilt) {
  const std::string commands = Read(fs::path(CCS_BINARY_DIR) / "compile_commands.json");
  EXPECT_THAT(Orphans(Sources({".cc", ".cu"}), commands), IsEmpty());
  EXPECT_EQ(Orphans({{"server/orphan.cc", ""}}, commands).size(), 1u);
}

TEST(SourceRules, EveryRoomHasAReadme) {
  std::vector<std::string> without;
  for (std::string_view folder : kFolders) {
    if (!fs::exists(kRoot / folder / "README.md")) without.emplace_back(folder);
  }
  for (std::string_view parent : {"server", "client/examples"}) {
    for (const auto& entry : fs::directory_iterator(kRoot / parent)) {
      if (entry.is_directory() && !fs::exists(entry.path() / "README.md")) {
        without.push_back(fs::relative(entry.path(), kRoot).generic_string());
      }
    }
  }
  EXPECT_THAT(without, IsEmpty());
}

TEST(SourceRules, TheTopLevelHoldsOnlyWhatBelongsThere) {
  std::vector<std::string> strangers;
  for (const auto& entry : fs::directory_iterator(kRoot)) {
    const std::string name = entry.path().filename().string();
    const bool folder = std::find(std::begin(kFolders), std::end(kFolders), name) != std::end(kFolders);
    const bool file = name == "CMakeLists.txt" || name == "README.md" || name == "LICENSE";
    const bool hidden_or_built = name.starts_with(".") || name.starts_with("build");
    if (!folder && !file && !hidden_or_built) strangers.push_back(name);
  }
  EXPECT_THAT(strangers, IsEmpty());
}

}  // namespace
