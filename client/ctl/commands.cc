#include "client/ctl/commands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/checkpoint_name.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"

namespace ccs::client {
namespace {

constexpr size_t kCentresAtATime = 8192;

void Print(const Json& json, std::ostream& out) { out << json.dump(2) << "\n"; }

absl::Status PrintNearest(Client& client, absl::Span<const float> queries,
                          const std::vector<std::string>& names, int k, Format format, std::ostream& out) {
  const auto neighbours = client.Nearest(queries, k);
  if (!neighbours.ok()) return neighbours.status();
  if (format == Format::kJson) {
    Print(NeighboursJson(names, *neighbours), out);
  } else {
    out << NeighboursText(names, *neighbours);
  }
  return absl::OkStatus();
}

std::string CsvLine(int64_t class_id, absl::Span<const float> centre) {
  const auto format = [](std::string* text, float value) { absl::StrAppendFormat(text, "%.9g", value); };
  return absl::StrCat(class_id, ",", absl::StrJoin(centre, ",", format), "\n");
}

}  // namespace

absl::Status ShowStatus(const Remote& remote, Format format, std::ostream& out) {
  if (format == Format::kJson) {
    Print(StatusJson(remote.status()), out);
  } else {
    out << StatusText(remote.status());
  }
  return absl::OkStatus();
}

absl::Status ListCheckpoints(const Remote& remote, Format format, std::ostream& out) {
  const auto reply = remote.ListCheckpoints();
  if (!reply.ok()) return reply.status();
  if (format == Format::kJson) {
    Print(CheckpointsJson(*reply), out);
  } else {
    out << CheckpointsText(*reply);
  }
  return absl::OkStatus();
}

absl::Status TakeCheckpoint(const Remote& remote, Format format, std::ostream& out) {
  const auto reply = remote.Checkpoint();
  if (!reply.ok()) return reply.status();
  if (format == Format::kJson) {
    Print(CheckpointJson(reply->checkpoint()), out);
  } else {
    out << CheckpointName(reply->checkpoint().id()) << "  " << HumanBytes(reply->checkpoint().bytes())
        << "\n";
  }
  return absl::OkStatus();
}

absl::Status ReleaseCheckpoint(const Remote& remote, const ccs::v1::CheckpointId& id, std::ostream& out) {
  absl::Status status = remote.ReleaseCheckpoint(id);
  if (status.ok()) out << "checkpoint " << CheckpointName(id) << " is released\n";
  return status;
}

absl::Status CloseRun(const Remote& remote, const std::string& run_id, std::ostream& out) {
  absl::Status status = remote.CloseRun(run_id);
  if (status.ok()) out << "run " << run_id << " is closed\n";
  return status;
}

absl::Status NearestToClasses(const Remote& remote, const std::vector<int64_t>& class_ids, int k,
                              Format format, std::ostream& out) {
  const auto client = remote.Connect();
  if (!client.ok()) return client.status();
  const auto centres = (*client)->ReadCentres(class_ids);
  if (!centres.ok()) return centres.status();
  std::vector<std::string> names;
  names.reserve(class_ids.size());
  for (const int64_t id : class_ids) names.push_back(absl::StrCat("class ", id));
  return PrintNearest(**client, *centres, names, k, format, out);
}

absl::Status NearestToQueries(const Remote& remote, const Matrix& queries, int k, Format format,
                              std::ostream& out) {
  const auto client = remote.Connect();
  if (!client.ok()) return client.status();
  if (queries.cols != (*client)->info().dim) {
    return absl::InvalidArgumentError(absl::StrCat("the queries have width ", queries.cols,
                                                   " but the centres have ", (*client)->info().dim));
  }
  std::vector<std::string> names;
  for (int64_t row = 0; row < queries.rows; ++row) names.push_back(absl::StrCat("row ", row));
  return PrintNearest(**client, queries.values, names, k, format, out);
}

absl::Status PrintCentres(const Remote& remote, const std::vector<int64_t>& class_ids, Format format,
                          std::ostream& out) {
  const auto client = remote.Connect();
  if (!client.ok()) return client.status();
  const size_t dim = (*client)->info().dim;
  if (format == Format::kJson) out << "[";
  for (size_t first = 0; first < class_ids.size(); first += kCentresAtATime) {
    const auto ids = absl::MakeConstSpan(class_ids).subspan(first, kCentresAtATime);
    const auto centres = (*client)->ReadCentres(ids);
    if (!centres.ok()) return centres.status();
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto centre = absl::MakeConstSpan(*centres).subspan(i * dim, dim);
      if (format == Format::kText) {
        out << CsvLine(ids[i], centre);
      } else {
        out << (first + i == 0 ? "\n" : ",\n")
            << Json{{"class_id", ids[i]}, {"centre", std::vector<float>(centre.begin(), centre.end())}}
                   .dump();
      }
    }
  }
  if (format == Format::kJson) out << "\n]\n";
  return absl::OkStatus();
}

}  // namespace ccs::client
