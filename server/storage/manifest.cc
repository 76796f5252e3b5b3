#include "server/storage/manifest.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace ccs {
namespace {

using Json = nlohmann::ordered_json;

// Throws Json::exception.
std::string Serialize(const Manifest& manifest) {
  const CheckpointHeader& header = manifest.header;
  Json json = {
      {"format_version", kFormatVersion},
      {"lineage", header.id.lineage},
      {"step", header.id.step},
      {"nonce", header.id.nonce},
      {"index", header.index},
      {"rank", header.rank},
      {"num_shards", header.num_shards},
      {"class_start", header.class_start},
      {"num_local", header.num_local},
      {"dim", header.dim},
      {"rows_per_block", manifest.rows_per_block},
      {"created", absl::FormatTime(absl::RFC3339_full, header.created, absl::UTCTimeZone())},
      {"spec", header.spec},
      {"files", Json::object()},
  };
  for (const auto& [name, digest] : manifest.files) {
    json["files"][name] = {{"size", digest.size}, {"xxh3", digest.xxh3}};
  }
  json["manifest_xxh3"] = DigestOf(json.dump(2));
  return json.dump(2) + "\n";
}

// Throws Json::exception.
absl::StatusOr<Manifest> Deserialize(const Json& json) {
  Manifest manifest;
  CheckpointHeader& header = manifest.header;
  json.at("lineage").get_to(header.id.lineage);
  json.at("step").get_to(header.id.step);
  json.at("nonce").get_to(header.id.nonce);
  json.at("index").get_to(header.index);
  json.at("rank").get_to(header.rank);
  json.at("num_shards").get_to(header.num_shards);
  json.at("class_start").get_to(header.class_start);
  json.at("num_local").get_to(header.num_local);
  json.at("dim").get_to(header.dim);
  json.at("rows_per_block").get_to(manifest.rows_per_block);
  json.at("spec").get_to(header.spec);
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, json.at("created").get<std::string>(), &header.created, &error)) {
    return absl::DataLossError(error);
  }
  for (const auto& [name, file] : json.at("files").items()) {
    manifest.files[name] = {file.at("size").get<int64_t>(), file.at("xxh3").get<std::string>()};
  }
  return manifest;
}

}  // namespace

int64_t Manifest::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, digest] : files) bytes += digest.size;
  return bytes;
}

absl::StatusOr<std::string> WriteManifest(const Manifest& manifest) {
  try {
    return Serialize(manifest);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the header is not text: ", error.what()));
  }
}

absl::StatusOr<Manifest> ReadManifest(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (const int64_t version = json.at("format_version").get<int64_t>(); version != kFormatVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat("format version ", version, ", this program knows version ", kFormatVersion));
    }
    absl::StatusOr<Manifest> manifest = Deserialize(json);
    if (manifest.ok() && Serialize(*manifest) != text)
      return absl::DataLossError("the digest does not match");
    return manifest;
  } catch (const Json::exception& error) {
    return absl::DataLossError(error.what());
  }
}

absl::Status CheckFiles(const std::filesystem::path& directory, const Manifest& manifest, bool deep) {
  for (const auto& [name, expected] : manifest.files) {
    const std::filesystem::path path = directory / name;
    std::error_code error;
    const auto size = std::filesystem::file_size(path, error);
    if (error) return absl::DataLossError(absl::StrCat(path.string(), ": ", error.message()));
    if (static_cast<int64_t>(size) != expected.size) {
      return absl::DataLossError(
          absl::StrCat(path.string(), " has ", size, " bytes instead of ", expected.size));
    }
    if (!deep) continue;
    const absl::StatusOr<FileDigest> digest = DigestFile(path);
    if (!digest.ok()) return digest.status();
    if (*digest != expected) return absl::DataLossError(absl::StrCat(path.string(), " is damaged"));
  }
  return absl::OkStatus();
}

}  // namespace ccs
