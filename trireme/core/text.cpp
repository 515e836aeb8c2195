#include "trireme/core/text.h"

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

}  // namespace trireme::core
