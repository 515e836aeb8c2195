// What `trireme plan` prints.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>

#include "trireme/plan/memory_plan.h"

namespace trireme::cli {

/// A table of the parts, each in a column of the device's memory and, where there is any, of the host's; then
/// the totals and what lies on disks.
void print_parts(std::ostream& out, const plan::MemoryPlan& plan, bool on_cpu);

/// {"moment":, "device": {part: bytes}, "device_total":, "host": {part: bytes}, "host_total":, "disk":}. A
/// part's key is its name with _ for spaces.
nlohmann::ordered_json to_json(const plan::MemoryPlan& plan);

}  // namespace trireme::cli
