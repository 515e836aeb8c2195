// How a rank tells the launcher, in its standard error, that a line is the reason why it is about to end:
// such a line is printed only if this rank turns out to be the cause.
#pragma once

#include <optional>
#include <string>

namespace trireme::cli {

/// What to write in front of the first line of the reason. `exit_code` is from 0 to 9.
std::string error_mark(int exit_code);

/// Cuts the mark off a line and gives its exit code; nothing where the line has none.
std::optional<int> take_error_mark(std::string& line);

}  // namespace trireme::cli
