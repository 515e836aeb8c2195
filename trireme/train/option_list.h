// The description of every option, for `trireme train --help-options` and the documentation.
#pragma once

#include <iosfwd>
#include <string_view>
#include <vector>

namespace trireme::train {

/// One key of `run.json`.
struct OptionInfo {
  std::string_view path;       ///< "optimizer.params.lr"
  std::string_view type;       ///< "number", "WarmupLR | OneCycle", ...
  std::string_view otherwise;  ///< the default; "required" where there is none
  std::string_view meaning;
};

/// Every key that `parse_options` accepts, in the order of the documentation.
const std::vector<OptionInfo>& list_options();

/// Writes the list as a table for a terminal.
void print_options(std::ostream& out);

}  // namespace trireme::train
