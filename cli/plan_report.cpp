#include "cli/plan_report.h"

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <string>
#include <string_view>

#include "trireme/train/progress.h"

namespace trireme::cli {
namespace {

using plan::Amount;
using plan::Part;

constexpr int kNames = 16, kBytes = 11;

std::string bytes_text(int64_t bytes) { return bytes == 0 ? "-" : train::format_bytes(bytes); }

nlohmann::ordered_json to_json(const Amount& amount) {
  nlohmann::ordered_json parts;
  for (size_t part = 0; part < plan::kParts; ++part) {
    std::string name(plan::name_of(Part(part)));
    std::replace(name.begin(), name.end(), ' ', '_');
    parts[name] = amount[Part(part)];
  }
  return parts;
}

}  // namespace

void print_parts(std::ostream& out, const std::vector<PartsColumn>& columns) {
  const auto row = [&](std::string_view name, const auto& cell) {
    out << std::left << std::setw(kNames) << name << std::right;
    for (const auto& column : columns)
      out << std::setw(std::max(kBytes, int(column.heading.size()) + 2)) << cell(column);
    out << '\n';
  };
  row("", [](const PartsColumn& column) { return column.heading; });
  for (size_t part = 0; part < plan::kParts; ++part)
    row(plan::name_of(Part(part)),
        [&](const PartsColumn& column) { return bytes_text(column.bytes[Part(part)]); });
  row("total", [](const PartsColumn& column) { return train::format_bytes(column.bytes.total()); });
}

nlohmann::ordered_json to_json(const plan::MemoryPlan& plan) {
  return {
      {"moment", plan.moment},      {"device", to_json(plan.device)},  {"device_total", plan.device.total()},
      {"host", to_json(plan.host)}, {"host_total", plan.host.total()}, {"disk", plan.disk}};
}

}  // namespace trireme::cli
