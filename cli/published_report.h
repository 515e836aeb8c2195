// What `trireme plan --table` prints.
#pragma once

#include <iosfwd>

namespace trireme::cli {

/// The published longest sequences and largest models beside the plan's, with the parts at each of ours, what
/// limits it, and why it differs.
void print_published(std::ostream& out);

}  // namespace trireme::cli
