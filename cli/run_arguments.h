// The arguments of a subcommand that runs what an options file says on this machine's ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/environment.h"
#include "trireme/train/options.h"

namespace CLI {
class App;
}

namespace trireme::cli {

struct RunArguments {
  std::string options_file;
  std::vector<std::string> overrides;
  int64_t ranks = 1;
};

/// Adds RUN.json, --ranks and --set to `command`. `arguments` must outlive its parsing.
void add_run_arguments(CLI::App& command, RunArguments& arguments);

/// `--set a=1 run.json` hands the file to `--set`, which may take several values: gives it back.
void give_back_file(RunArguments& arguments);

/// The options, checked as far as they can be before any rank starts; makes nothing. Throws `ValueError`.
train::Options read_checked_options(const RunArguments& arguments, const comm::Environment& environment);

/// The words of `trireme train` with these arguments, for a `Command`.
std::vector<std::string> train_words(const RunArguments& arguments);

}  // namespace trireme::cli
