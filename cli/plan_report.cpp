#include "cli/plan_report.h"

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <string>

#include "trireme/train/progress.h"

namespace trireme::cli {
namespace {

using plan::Amount;
using plan::Part;

constexpr int kNames = 18, kBytes = 11;

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

void print_parts(std::ostream& out, const plan::MemoryPlan& plan, bool on_cpu) {
  const auto row = [&](std::string_view name, const std::string& device, const std::string& host) {
    out << std::left << std::setw(kNames) << name << std::right << std::setw(kBytes) << device;
    if (!on_cpu) out << std::setw(kBytes) << host;
    out << '\n';
  };
  row("", on_cpu ? "memory" : "device", "host");
  for (size_t part = 0; part < plan::kParts; ++part)
    row(plan::name_of(Part(part)), bytes_text(plan.device[Part(part)]), bytes_text(plan.host[Part(part)]));
  row("total", train::format_bytes(plan.device.total()), train::format_bytes(plan.host.total()));
  if (plan.disk > 0) row("on disk", train::format_bytes(plan.disk), "");
}

nlohmann::ordered_json to_json(const plan::MemoryPlan& plan) {
  return {
      {"moment", plan.moment},      {"device", to_json(plan.device)},  {"device_total", plan.device.total()},
      {"host", to_json(plan.host)}, {"host_total", plan.host.total()}, {"disk", plan.disk}};
}

}  // namespace trireme::cli
