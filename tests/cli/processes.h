// Looking at processes and at what they print.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace trireme::cli {

/// The kernel's letter for what a process does: 'T' where it is stopped, 'Z' where it has ended and nobody
/// waited for it. 0 where there is none.
char state_of(pid_t process);

/// Whether all of them end within ten seconds.
bool all_end(const std::vector<pid_t>& processes);

/// How often `part` is in `text`.
size_t count(const std::string& text, const std::string& part);

/// Appends what can be read from a non-blocking descriptor now.
void read_available(int descriptor, std::string& text);

}  // namespace trireme::cli
