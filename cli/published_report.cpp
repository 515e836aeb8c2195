#include "cli/published_report.h"

#include <array>
#include <iomanip>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/plan_report.h"
#include "trireme/core/check.h"
#include "trireme/core/text.h"
#include "trireme/plan/published.h"
#include "trireme/plan/shapes.h"
#include "trireme/train/progress.h"

namespace trireme::cli {
namespace {

using plan::Part;
using train::format_bytes;
using train::format_count;

constexpr const char* kSequences =
    "ALST (arXiv:2506.13996): the longest sequence of Llama 8B, on H100s of 80 GB, in machines of 8 with 1.9 "
    "TB.\n"
    "The plan counts what tensors take: no pieces of memory too small to use, and no kernel's own "
    "limits.\n\n";

void print_sequences(std::ostream& out) {
  const auto row = [&](const std::array<std::string, 6>& cells) {
    out << std::left << std::setw(8) << cells[0] << std::right;
    for (size_t i = 1; i < cells.size(); ++i) out << std::setw(i < 3 ? 11 : 12) << cells[i];
    out << '\n';
  };
  out << kSequences;
  row({"", "", "", "", "published", "published"});
  row({"", "published", "planned", "limited by", "on device", "on host"});
  std::vector<PartsColumn> columns;
  const auto sequences = plan::published_sequences();
  for (const auto& published : sequences) {
    const auto longest = plan::longest_sequence(published.setting, published.machine);
    const auto theirs = plan::plan_memory(published.setting);
    auto setting = published.setting;
    setting.sequence = longest.tokens;
    const auto ours = plan::plan_memory(setting);
    const std::string gpus = core::counted(setting.ranks, "GPU"),
                      length = format_count(double(longest.tokens));
    row({gpus, format_count(double(published.tokens)), length,
         longest.limit == plan::Limit::host ? "host" : "device", format_bytes(theirs.device.total()),
         format_bytes(theirs.host.total())});
    columns.push_back({core::concatenate(gpus, ", ", length), ours.device});
    columns.push_back({"host", ours.host});
  }
  out << "\nA rank's parts at the planned length:\n\n";
  print_parts(out, columns);
  out << '\n';
  for (const auto& published : sequences)
    out << core::counted(published.setting.ranks, "GPU") << ": " << published.why << ".\n";
}

std::string states(const plan::Amount& amount) {
  return format_bytes(amount[Part::parameters] + amount[Part::gradients] + amount[Part::optimizer]);
}

void print_models(std::ostream& out) {
  out << "\nZeRO: the largest model on V100s of 32 GB, 1024 tokens a rank, beside 1.5 TB for at most 16 "
         "GPUs\n\n";
  const auto row = [&](const std::array<std::string, 7>& cells) {
    out << std::left << std::setw(26) << cells[0] << std::setw(22) << cells[1] << std::right;
    for (size_t i = 2; i < cells.size(); ++i) out << std::setw(i == 2 ? 7 : 12) << cells[i];
    out << '\n';
  };
  row({"", "", "", "states", "states", "all", "all"});
  row({"trained with", "shape", "size", "on device", "on host", "on device", "on host"});
  const auto models = plan::published_models();
  for (const auto& published : models) {
    const auto plan = plan::plan_memory(published.setting);
    row({std::string(published.name), std::string(published.shape),
         format_count(double(plan::parameter_count(published.setting.config))), states(plan.device),
         states(plan.host), format_bytes(plan.device.total()), format_bytes(plan.host.total())});
  }
  out << '\n';
  for (const auto& published : models)
    out << published.name << ": "
        << (plan::fits(plan::plan_memory(published.setting), published.machine) ? "fits" : "does not fit")
        << "; " << published.why << ".\n";
}

}  // namespace

void print_published(std::ostream& out) {
  print_sequences(out);
  print_models(out);
  out << std::flush;
}

}  // namespace trireme::cli
