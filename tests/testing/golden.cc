#include "tests/testing/golden.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/testing/npy.h"

namespace ccs::testing {
namespace {

std::filesystem::path CaseDirectory(const std::string& name) {
  return std::filesystem::path(CCS_GOLDEN_DIR) / name;
}

NpyArray ReadOf(const std::filesystem::path& directory, const std::string& array, int step) {
  return ReadNpy(directory / (array + "_" + std::to_string(step) + ".npy"));
}

ReferenceHead HeadOf(const nlohmann::json& json) {
  ReferenceHead head;
  head.scale = json.at("scale");
  const std::string kind = json.at("head");
  if (kind == "cosface") {
    head.m3 = json.at("margin");
  } else if (kind == "arcface") {
    head.m2 = json.at("margin");
  } else if (kind != "normface") {
    throw std::runtime_error("no head is called " + kind);
  }
  return head;
}

GoldenShardStep LoadShardStep(const std::filesystem::path& directory, int step) {
  return {.features = ReadOf(directory, "features", step).float32,
          .labels = ReadOf(directory, "labels", step).int64,
          .sampled = ReadOf(directory, "sampled", step).int64,
          .feature_grad = ReadOf(directory, "feature_grad", step).float32,
          .weight = ReadOf(directory, "weight", step).float32,
          .momentum = ReadOf(directory, "momentum", step).float32};
}

GoldenStep LoadStep(const std::filesystem::path& directory, const nlohmann::json& json, int step) {
  GoldenStep loaded;
  loaded.learning_rate = json.at("lr").at(std::to_string(step));
  const NpyArray loss = ReadOf(directory, "loss", step);
  loaded.loss = loss.float64.empty() ? loss.float32.at(0) : loss.float64.at(0);
  for (int k = 0; k < json.at("num_shards"); ++k) {
    loaded.shards.push_back(LoadShardStep(directory / ("shard" + std::to_string(k)), step));
  }
  return loaded;
}

}  // namespace

std::vector<std::string> GoldenCaseNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(CCS_GOLDEN_DIR)) {
    if (std::filesystem::exists(entry.path() / "case.json")) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

GoldenCase LoadGoldenCase(const std::string& name) {
  const std::filesystem::path directory = CaseDirectory(name);
  std::ifstream file(directory / "case.json");
  if (!file) throw std::runtime_error("no golden case " + name);
  const nlohmann::json json = nlohmann::json::parse(file);
  GoldenCase loaded;
  loaded.name = name;
  loaded.num_shards = json.at("num_shards");
  loaded.num_classes = json.at("num_classes");
  loaded.dim = json.at("embedding_dim");
  loaded.batch_per_trainer = json.at("batch_per_trainer");
  loaded.sample_rate = json.at("sample_rate");
  loaded.momentum = json.at("momentum");
  loaded.weight_decay = json.at("weight_decay");
  loaded.head = HeadOf(json);
  loaded.class_start = json.at("class_start").get<std::vector<int64_t>>();
  loaded.num_local = json.at("num_local").get<std::vector<int64_t>>();
  for (int k = 0; k < loaded.num_shards; ++k) {
    loaded.first_weights.push_back(ReadOf(directory / ("shard" + std::to_string(k)), "weight", 0).float32);
  }
  for (int step = 1; step <= json.at("steps"); ++step)
    loaded.steps.push_back(LoadStep(directory, json, step));
  return loaded;
}

}  // namespace ccs::testing
