// Pieces of messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::core {

/// `text` in single quotes on one line of printable ASCII: other bytes become `\xNN`, and what is longer than
/// 100 bytes is cut. For names and values read from a file that may be broken. (Not called
/// `quoted`: the standard library's would be found instead.)
std::string printable(std::string_view text);

/// "1 file", "2 files".
std::string counted(int64_t count, std::string_view noun);

/// What an integer had to be: "an integer of at least LOW". Where it was `too_large`, "an integer from LOW to
/// HIGH": most upper limits are too far off to be worth a word before somebody passes them.
std::string integer_rule(int64_t low, int64_t high, bool too_large);

}  // namespace trireme::core
