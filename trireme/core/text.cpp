#include "trireme/core/text.h"

#include "trireme/core/check.h"

namespace trireme::core {

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 100;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += "\\x";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  return result + (text.size() > kLongest ? "...'" : "'");
}

std::string counted(int64_t count, std::string_view noun) {
  return concatenate(count, ' ', noun, count == 1 ? "" : "s");
}

std::string integer_rule(int64_t low, int64_t high, bool too_large) {
  return too_large ? concatenate("an integer from ", low, " to ", high)
                   : concatenate("an integer of at least ", low);
}

}  // namespace trireme::core
