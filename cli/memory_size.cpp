#include "cli/memory_size.h"

#include <array>
#include <charconv>
#include <system_error>
#include <utility>

namespace trireme::cli {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 9> kUnits{{{"B", 1},
                                                                     {"KiB", 0x1p10},
                                                                     {"MiB", 0x1p20},
                                                                     {"GiB", 0x1p30},
                                                                     {"TiB", 0x1p40},
                                                                     {"KB", 1e3},
                                                                     {"MB", 1e6},
                                                                     {"GB", 1e9},
                                                                     {"TB", 1e12}}};

constexpr double kMostBytes = 0x1p60;

}  // namespace

std::optional<int64_t> parse_memory(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return {};
  text.remove_prefix(size_t(end - text.data()));
  while (text.starts_with(' ')) text.remove_prefix(1);
  for (const auto& [unit, factor] : kUnits) {
    const double bytes = number * factor;
    if (unit == text && bytes >= 1 && bytes < kMostBytes) return int64_t(bytes);
  }
  return {};
}

std::string fault_of_memory(const std::string& text) {
  return parse_memory(text)
             ? ""
             : "must be a number of bytes, fewer than 2^60, with its unit, such as 8GiB or 512MiB; got " +
                   text;
}

}  // namespace trireme::cli
