// Looking at processes and at what they print.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace trireme::cli {

/// Whether all of them end within ten seconds.
bool all_end(const std::vector<pid_t>& processes);

/// How often `part` is in `text`.
size_t count(const std::string& text, const std::string& part);

/// Appends what can be read from a non-blocking descriptor now.
void read_available(int descriptor, std::string& text);

}  // namespace trireme::cli
