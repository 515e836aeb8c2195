#include "cli/error_mark.h"

#include <string_view>

namespace trireme::cli {
namespace {

constexpr std::string_view kMark = "\x01trireme";  // no text begins with such a byte by chance

}  // namespace

std::string error_mark(int exit_code) { return std::string(kMark) + char('0' + exit_code); }

std::optional<int> take_error_mark(std::string& line) {
  if (!line.starts_with(kMark) || line.size() == kMark.size()) return {};
  const int exit_code = line[kMark.size()] - '0';
  line.erase(0, kMark.size() + 1);
  return exit_code;
}

}  // namespace trireme::cli
