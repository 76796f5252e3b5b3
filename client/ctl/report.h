// The protocol's answers as text and as JSON.
#ifndef CCS_CLIENT_CTL_REPORT_H_
#define CCS_CLIENT_CTL_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ccs/v1/admin.pb.h"
#include "client/include/ccs/client/client.h"

namespace ccs::client {

// Lineages and ids of checkpoints are strings in JSON: 64 bits are more than a JSON number is sure to keep.
using Json = nlohmann::ordered_json;

std::string StatusText(const ccs::v1::StatusReply& status);
Json StatusJson(const ccs::v1::StatusReply& status);

std::string CheckpointsText(const ccs::v1::ListCheckpointsReply& list);
Json CheckpointsJson(const ccs::v1::ListCheckpointsReply& list);
Json CheckpointJson(const ccs::v1::CheckpointInfo& checkpoint);

// `names` says what each query was.
std::string NeighboursText(const std::vector<std::string>& names,
                           const std::vector<std::vector<Neighbour>>& neighbours);
Json NeighboursJson(const std::vector<std::string>& names,
                    const std::vector<std::vector<Neighbour>>& neighbours);

}  // namespace ccs::client

#endif  // CCS_CLIENT_CTL_REPORT_H_
