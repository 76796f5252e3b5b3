// The one place that turns the model spec's message into the plain struct.
#ifndef CCS_SERVER_MODEL_SPEC_PROTO_H_
#define CCS_SERVER_MODEL_SPEC_PROTO_H_

#include <ccs/v1/model.pb.h>

#include <string>

#include "absl/status/statusor.h"
#include "server/model_spec.h"

namespace ccs {

// Fills in defaults and validates. INVALID_ARGUMENT names the field and the value.
absl::StatusOr<ModelSpec> ModelSpecFromProto(const v1::ModelSpec& proto);

// Reads a textproto file; INVALID_ARGUMENT names line and column, NOT_FOUND the file.
absl::StatusOr<v1::ModelSpec> ReadModelSpec(const std::string& path);

// Every field, defaults filled in, in one canonical text: equal for specs that mean the same.
absl::StatusOr<std::string> CanonicalSpec(const v1::ModelSpec& proto);

// The fields in which two specs differ, "sample_rate: 0.1 here, 1 there; ..."; empty if they mean the same.
std::string SpecDifference(const v1::ModelSpec& here, const v1::ModelSpec& there);

}  // namespace ccs

#endif  // CCS_SERVER_MODEL_SPEC_PROTO_H_
