// What `trireme plan` prints.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/plan/memory_plan.h"

namespace trireme::cli {

/// The bytes of each part under a heading.
struct PartsColumn {
  std::string heading;
  plan::Amount bytes;
};

/// A table: a row for each part, and one of the sums.
void print_parts(std::ostream& out, const std::vector<PartsColumn>& columns);

/// {"moment":, "device": {part: bytes}, "device_total":, "host": {part: bytes}, "host_total":, "disk":}. A
/// part's key is its name with _ for spaces.
nlohmann::ordered_json to_json(const plan::MemoryPlan& plan);

}  // namespace trireme::cli
