#include "client/include/ccs/client/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/centres.h"
#include "client/cluster.h"
#include "client/run.h"
#include "client/tensor.h"

namespace ccs::client {
namespace {

// How long one address may take to answer while there are others to try.
constexpr absl::Duration kLongestDescribe = absl::Seconds(5);

class ClientImpl final : public Client {
 public:
  explicit ClientImpl(std::shared_ptr<const Cluster> cluster) : cluster_(std::move(cluster)) {}

  const ClusterInfo& info() const override { return cluster_->info; }

  absl::StatusOr<std::unique_ptr<Run>> OpenRun(const RunOptions& options) override {
    return client::OpenRun(*cluster_, options);
  }

  absl::StatusOr<Evaluation> Evaluate(absl::Span<const float> features, absl::Span<const int64_t> labels,
                                      std::optional<double> sample_rate) override {
    const int64_t dim = cluster_->info.dim;
    const auto rows = static_cast<int64_t>(labels.size());
    if (absl::Status status = CheckShape(features, rows, dim, "features"); !status.ok()) return status;
    const SendOptions send = cluster_->Deadline();
    Evaluation total;
    double loss_sum = 0;
    for (int64_t first = 0; first < rows; first += cluster_->max_batch) {
      const int64_t count = std::min(cluster_->max_batch, rows - first);
      ccs::v1::EvaluateRequest request;
      FillTensor(features.subspan(first * dim, count * dim), dim, request.mutable_features());
      request.mutable_labels()->Add(labels.begin() + first, labels.begin() + first + count);
      if (sample_rate.has_value()) request.set_sample_rate(*sample_rate);
      ccs::v1::EvaluateReply reply;
      if (absl::Status status =
              Send({cluster_->shards.ToAny(&Stubs<Training>::Async::Evaluate, &request, &reply)}, send);
          !status.ok()) {
        return status;
      }
      loss_sum += reply.loss() * static_cast<double>(reply.labelled_rows());
      total.labelled_rows += reply.labelled_rows();
      total.rank1_hits += reply.rank1_hits();
    }
    if (total.labelled_rows > 0) total.loss = loss_sum / static_cast<double>(total.labelled_rows);
    return total;
  }

  absl::StatusOr<std::vector<std::vector<Neighbour>>> Nearest(absl::Span<const float> queries,
                                                              int k) override {
    const int64_t dim = cluster_->info.dim;
    const int64_t rows = static_cast<int64_t>(queries.size()) / dim;
    if (absl::Status status = CheckShape(queries, rows, dim, "queries"); !status.ok()) return status;
    const SendOptions send = cluster_->Deadline();
    std::vector<std::vector<Neighbour>> result;
    for (int64_t first = 0; first < rows; first += cluster_->max_batch) {
      const int64_t count = std::min(cluster_->max_batch, rows - first);
      ccs::v1::NearestRequest request;
      FillTensor(queries.subspan(first * dim, count * dim), dim, request.mutable_queries());
      request.set_k(k);
      ccs::v1::NearestReply reply;
      if (absl::Status status =
              Send({cluster_->shards.ToAny(&Stubs<Training>::Async::Nearest, &request, &reply)}, send);
          !status.ok()) {
        return status;
      }
      if (absl::Status status = AppendNeighbours(reply, count, &result); !status.ok()) return status;
    }
    return result;
  }

  absl::StatusOr<std::vector<float>> ReadCentres(absl::Span<const int64_t> class_ids) override {
    return client::ReadCentres(*cluster_, class_ids);
  }

  absl::Status WriteCentres(absl::Span<const int64_t> class_ids, absl::Span<const float> centres) override {
    return client::WriteCentres(*cluster_, class_ids, centres);
  }

 private:
  static absl::Status AppendNeighbours(const ccs::v1::NearestReply& reply, int64_t rows,
                                       std::vector<std::vector<Neighbour>>* result) {
    if (reply.k() < 0 || reply.class_ids_size() != rows * reply.k() ||
        reply.cosines_size() != rows * reply.k()) {
      return absl::InternalError(absl::StrCat("the server's neighbours should be [", rows, ", ", reply.k(),
                                              "] but are ", reply.class_ids_size(), " ids and ",
                                              reply.cosines_size(), " cosines"));
    }
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<Neighbour>& neighbours = result->emplace_back();
      for (int64_t i = row * reply.k(); i < (row + 1) * reply.k(); ++i) {
        neighbours.push_back({reply.class_ids(static_cast<int>(i)), reply.cosines(static_cast<int>(i))});
      }
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<const Cluster> cluster_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  if (options.addresses.empty()) return absl::InvalidArgumentError("no address to connect to");
  if (options.timeout <= absl::ZeroDuration())
    return absl::InvalidArgumentError("the timeout must be positive");
  std::vector<Stubs<Training>::Server> servers;
  for (const std::string& address : options.addresses) servers.push_back({address, address});
  const Stubs<Training> stubs(servers);
  const ccs::v1::DescribeRequest request;
  ccs::v1::DescribeReply reply;
  SendOptions send{.deadline = DeadlineAfter(options.timeout)};
  if (servers.size() > 1) {
    send.attempt_timeout = std::min(kLongestDescribe, options.timeout / static_cast<double>(servers.size()));
  }
  if (absl::Status status = Send({stubs.ToAny(&Stubs<Training>::Async::Describe, &request, &reply)}, send);
      !status.ok()) {
    return status;
  }
  auto cluster = MakeCluster(reply.spec(), reply.layout(), reply.position(), reply.version(), options.timeout,
                             options.addresses);
  if (!cluster.ok()) return cluster.status();
  return std::make_unique<ClientImpl>(*std::move(cluster));
}

}  // namespace ccs::client
