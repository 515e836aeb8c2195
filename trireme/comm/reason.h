// What a backend said when it failed, in one line.
#pragma once

#include <exception>
#include <string>

namespace trireme::comm {

/// The first sentence of what c10d or gloo threw: without backtraces, source positions and advice for their
/// developers.
std::string reason_of(const std::exception& error);

}  // namespace trireme::comm
