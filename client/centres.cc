#include "client/centres.h"

#include <algorithm>
#include <functional>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/layout.h"
#include "client/random_id.h"
#include "client/status.h"
#include "client/tensor.h"

namespace ccs::client {
namespace {

// Messages stay below gRPC's default limit, and no more than this many are held in memory at once.
constexpr int64_t kMaxMessageBytes = (4 << 20) - (64 << 10);
constexpr size_t kMaxMessages = 16;

int64_t RowsPerMessage(int dim) {
  return std::max<int64_t>(1, kMaxMessageBytes / static_cast<int64_t>(dim * sizeof(float) + sizeof(int64_t)));
}

absl::Status CheckIds(absl::Span<const int64_t> class_ids, int64_t num_classes) {
  for (size_t i = 0; i < class_ids.size(); ++i) {
    if (class_ids[i] >= 0 && class_ids[i] < num_classes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("class id ", class_ids[i], " in place ", i, " is outside [0, ", num_classes, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckDistinct(absl::Span<const int64_t> class_ids) {
  absl::flat_hash_set<int64_t> seen;
  for (size_t i = 0; i < class_ids.size(); ++i) {
    if (seen.insert(class_ids[i]).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("class id ", class_ids[i], " in place ", i, " is there twice"));
  }
  return absl::OkStatus();
}

// Sends one request for each piece of `class_ids`, a window of them at a time. `fill` completes a request
// whose ids are set, `take` uses the reply.
template <typename Request, typename Reply>
absl::Status SendToOwners(const Cluster& cluster, absl::Span<const int64_t> class_ids,
                          Stubs<Training>::Method<Request, Reply> method, const SendOptions& send,
                          const std::function<void(const OwnedRows&, Request*)>& fill,
                          const std::function<absl::Status(const OwnedRows&, const Reply&)>& take) {
  const std::vector<OwnedRows> pieces =
      GroupByOwner(cluster.info.shards, class_ids, RowsPerMessage(cluster.info.dim));
  for (size_t first = 0; first < pieces.size(); first += kMaxMessages) {
    const size_t count = std::min(kMaxMessages, pieces.size() - first);
    std::vector<Request> requests(count);
    std::vector<Reply> replies(count);
    std::vector<Call> calls;
    for (size_t i = 0; i < count; ++i) {
      const OwnedRows& piece = pieces[first + i];
      for (const int64_t row : piece.rows) requests[i].add_class_ids(class_ids[row]);
      fill(piece, &requests[i]);
      calls.push_back(cluster.shards.ToOne(piece.shard, method, &requests[i], &replies[i]));
    }
    if (absl::Status status = Send(calls, send); !status.ok()) return status;
    for (size_t i = 0; i < count; ++i) {
      if (absl::Status status = take(pieces[first + i], replies[i]); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Stage(const Cluster& cluster, absl::Span<const int64_t> class_ids,
                   absl::Span<const float> centres, const std::string& write_id, const SendOptions& send) {
  const int dim = cluster.info.dim;
  const auto fill = [&](const OwnedRows& piece, ccs::v1::WriteCentresRequest* request) {
    request->set_write_id(write_id);
    std::vector<float> rows;
    rows.reserve(piece.rows.size() * dim);
    for (const int64_t row : piece.rows) {
      rows.insert(rows.end(), centres.begin() + row * dim, centres.begin() + (row + 1) * dim);
    }
    FillTensor(rows, dim, request->mutable_centres());
  };
  const auto take = [](const OwnedRows&, const ccs::v1::WriteCentresReply&) { return absl::OkStatus(); };
  return SendToOwners<ccs::v1::WriteCentresRequest, ccs::v1::WriteCentresReply>(
      cluster, class_ids, &Stubs<Training>::Async::WriteCentres, send, fill, take);
}

absl::Status Commit(const Cluster& cluster, int64_t rows, const std::string& write_id,
                    const SendOptions& send) {
  ccs::v1::WriteCentresRequest request;
  request.set_write_id(write_id);
  request.set_commit_rows(rows);
  ccs::v1::WriteCentresReply reply;
  return Send({cluster.shards.ToAny(&Stubs<Training>::Async::WriteCentres, &request, &reply)}, send);
}

// Staged rows live in the shards' memory: a shard that was restarted has lost them.
bool StagedRowsAreMissing(const absl::Status& status) {
  const auto detail = DetailOf(status);
  return absl::IsFailedPrecondition(status) && detail.has_value() &&
         detail->reason() == "staged_rows_missing";
}

}  // namespace

absl::StatusOr<std::vector<float>> ReadCentres(const Cluster& cluster, absl::Span<const int64_t> class_ids) {
  if (absl::Status status = CheckIds(class_ids, cluster.info.num_classes); !status.ok()) return status;
  const int dim = cluster.info.dim;
  std::vector<float> centres(class_ids.size() * dim);
  const auto fill = [](const OwnedRows&, ccs::v1::ReadCentresRequest*) {};
  const auto take = [&](const OwnedRows& piece, const ccs::v1::ReadCentresReply& reply) {
    const auto rows = static_cast<int64_t>(piece.rows.size());
    if (absl::Status status = CheckTensor(reply.centres(), rows, dim, "centres"); !status.ok()) return status;
    for (int64_t i = 0; i < rows; ++i) CopyRow(reply.centres(), i, centres.data() + piece.rows[i] * dim);
    return absl::OkStatus();
  };
  if (absl::Status status = SendToOwners<ccs::v1::ReadCentresRequest, ccs::v1::ReadCentresReply>(
          cluster, class_ids, &Stubs<Training>::Async::ReadCentres, cluster.Deadline(), fill, take);
      !status.ok()) {
    return status;
  }
  return centres;
}

absl::Status WriteCentres(const Cluster& cluster, absl::Span<const int64_t> class_ids,
                          absl::Span<const float> centres) {
  const auto rows = static_cast<int64_t>(class_ids.size());
  for (const absl::Status& status :
       {CheckShape(centres, rows, cluster.info.dim, "centres"), CheckIds(class_ids, cluster.info.num_classes),
        CheckDistinct(class_ids)}) {
    if (!status.ok()) return status;
  }
  if (rows == 0) return absl::OkStatus();
  const SendOptions send = cluster.Deadline();
  const std::string write_id = absl::StrCat(absl::Hex(RandomId(), absl::kZeroPad16));
  const auto stage_and_commit = [&] {
    const absl::Status status = Stage(cluster, class_ids, centres, write_id, send);
    return status.ok() ? Commit(cluster, rows, write_id, send) : status;
  };
  const absl::Status status = stage_and_commit();
  return StagedRowsAreMissing(status) ? stage_and_commit() : status;
}

}  // namespace ccs::client
