#include "client/ctl/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/checkpoint_name.h"
#include "client/ctl/table.h"

namespace ccs::client {
namespace {

std::string ClassRange(const ccs::v1::ShardInfo& shard) {
  if (shard.num_classes() == 0) return "none";
  return absl::StrCat(shard.class_start(), "..", shard.class_start() + shard.num_classes() - 1);
}

std::string RunText(const ccs::v1::StatusReply& status) {
  if (!status.has_run()) return "none";
  const ccs::v1::RunStatus& run = status.run();
  return absl::StrCat(run.run_id(), ", trainers ", absl::StrJoin(run.open_trainers(), " "), " of ",
                      run.num_trainers(), " open");
}

std::string CheckpointText(const ccs::v1::StatusReply& status) {
  if (!status.has_last_checkpoint()) return "none";
  const ccs::v1::CheckpointInfo& last = status.last_checkpoint();
  return absl::StrCat(CheckpointName(last.id()), ", ", HumanBytes(last.bytes()), ", ",
                      UtcTime(last.created_unix_s()));
}

Json ShardJson(const ccs::v1::ShardStatus& shard) {
  return {{"rank", shard.info().rank()},
          {"address", shard.info().address()},
          {"connected", shard.connected()},
          {"device", shard.device()},
          {"class_start", shard.info().class_start()},
          {"num_classes", shard.info().num_classes()},
          {"step", shard.step()},
          {"state_bytes", shard.state_bytes()},
          {"workspace_bytes", shard.workspace_bytes()},
          {"heartbeat_age_s", shard.heartbeat_age_s()},
          {"activity", shard.activity()}};
}

}  // namespace

std::string StatusText(const ccs::v1::StatusReply& status) {
  const std::string detail = status.state_detail().empty() ? "" : absl::StrCat(", ", status.state_detail());
  std::string text = absl::StrCat(
      "state       ", ccs::v1::ClusterState_Name(status.state()), detail, "\n",                          //
      "position    step ", status.position().step(), " of lineage ", status.position().lineage(), "\n",  //
      "model       ", status.spec().num_classes(), " classes of width ", status.spec().dim(), "\n",      //
      "run         ", RunText(status), "\n",                                                             //
      "loss        ", absl::StrFormat("%.6g", status.loss()), "\n",                                      //
      "checkpoint  ", CheckpointText(status), "\n",                                                      //
      "version     ", status.version(), "\n\n");
  Table table({"RANK", "ADDRESS", "DEVICE", "CLASSES", "STEP", "STATE", "HEARTBEAT", "ACTIVITY"});
  for (const ccs::v1::ShardStatus& shard : status.shards()) {
    table.AddRow({absl::StrCat(shard.info().rank()), shard.info().address(), shard.device(),
                  ClassRange(shard.info()), absl::StrCat(shard.step()), HumanBytes(shard.state_bytes()),
                  absl::StrFormat("%.1f s", shard.heartbeat_age_s()),
                  shard.connected() ? shard.activity() : "not connected"});
  }
  return text + table.ToString();
}

Json StatusJson(const ccs::v1::StatusReply& status) {
  Json json = {{"state", ccs::v1::ClusterState_Name(status.state())},
               {"state_detail", status.state_detail()},
               {"epoch", status.epoch()},
               {"position",
                {{"lineage", absl::StrCat(status.position().lineage())}, {"step", status.position().step()}}},
               {"model", {{"num_classes", status.spec().num_classes()}, {"dim", status.spec().dim()}}},
               {"run", nullptr},
               {"loss", status.loss()},
               {"last_checkpoint", nullptr},
               {"version", status.version()},
               {"shards", Json::array()}};
  if (status.has_run()) {
    json["run"] = {{"run_id", status.run().run_id()},
                   {"num_trainers", status.run().num_trainers()},
                   {"open_trainers", Json(status.run().open_trainers())}};
  }
  if (status.has_last_checkpoint()) json["last_checkpoint"] = CheckpointJson(status.last_checkpoint());
  for (const ccs::v1::ShardStatus& shard : status.shards()) json["shards"].push_back(ShardJson(shard));
  return json;
}

std::string CheckpointsText(const ccs::v1::ListCheckpointsReply& list) {
  Table table({"CHECKPOINT", "STEP", "SIZE", "CREATED", "KEPT"});
  for (const ccs::v1::CheckpointInfo& checkpoint : list.checkpoints()) {
    table.AddRow({CheckpointName(checkpoint.id()), absl::StrCat(checkpoint.id().step()),
                  HumanBytes(checkpoint.bytes()), UtcTime(checkpoint.created_unix_s()),
                  checkpoint.kept() ? "until released" : ""});
  }
  const auto format = [](std::string* text, const ccs::v1::StepRange& range) {
    absl::StrAppend(text, range.first());
    if (range.last() > range.first()) absl::StrAppend(text, " to ", range.last());
  };
  const std::string window =
      list.window().empty() ? "nothing" : absl::StrCat("step ", absl::StrJoin(list.window(), ", ", format));
  return absl::StrCat(table.ToString(), "A run can resume from: ", window, "\n");
}

Json CheckpointsJson(const ccs::v1::ListCheckpointsReply& list) {
  Json json = {{"checkpoints", Json::array()}, {"window", Json::array()}};
  for (const ccs::v1::CheckpointInfo& checkpoint : list.checkpoints())
    json["checkpoints"].push_back(CheckpointJson(checkpoint));
  for (const ccs::v1::StepRange& range : list.window())
    json["window"].push_back({{"first_step", range.first()}, {"last_step", range.last()}});
  return json;
}

Json CheckpointJson(const ccs::v1::CheckpointInfo& checkpoint) {
  return {{"id", CheckpointName(checkpoint.id())},
          {"lineage", absl::StrCat(checkpoint.id().lineage())},
          {"step", checkpoint.id().step()},
          {"bytes", checkpoint.bytes()},
          {"created_unix_s", checkpoint.created_unix_s()},
          {"kept", checkpoint.kept()}};
}

std::string NeighboursText(const std::vector<std::string>& names,
                           const std::vector<std::vector<Neighbour>>& neighbours) {
  Table table({"QUERY", "PLACE", "CLASS", "COSINE"});
  for (size_t i = 0; i < neighbours.size(); ++i) {
    for (size_t place = 0; place < neighbours[i].size(); ++place) {
      table.AddRow({names[i], absl::StrCat(place + 1), absl::StrCat(neighbours[i][place].class_id),
                    absl::StrFormat("%.6f", neighbours[i][place].cosine)});
    }
  }
  return table.ToString();
}

Json NeighboursJson(const std::vector<std::string>& names,
                    const std::vector<std::vector<Neighbour>>& neighbours) {
  Json queries = Json::array();
  for (size_t i = 0; i < neighbours.size(); ++i) {
    Json found = Json::array();
    for (const Neighbour& neighbour : neighbours[i]) {
      found.push_back({{"class_id", neighbour.class_id}, {"cosine", neighbour.cosine}});
    }
    queries.push_back({{"query", names[i]}, {"neighbours", std::move(found)}});
  }
  return queries;
}

}  // namespace ccs::client
