// Text that came from outside, made fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace trireme::core {

/// `text` in single quotes on one line of printable ASCII: other bytes become `\xNN`, and what is longer than
/// 100 bytes is cut. For names and values read from a file that may be broken. (Not called
/// `quoted`: the standard library's would be found instead.)
std::string printable(std::string_view text);

}  // namespace trireme::core
