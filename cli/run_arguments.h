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

/// CLI11's check of an option that is an integer from `low` to `high`: empty where `text` is right.
std::string fault_of_integer(const std::string& text, int64_t low, int64_t high);

/// Adds RUN.json, --ranks and --set to `command`. `arguments` must outlive its parsing. `ranks`: what the
/// help says of --ranks.
void add_run_arguments(CLI::App& command, RunArguments& arguments,
                       const std::string& ranks = "Start so many ranks on this machine");

/// `--set a=1 run.json` hands the file to `--set`, which may take several values: gives it back.
void give_back_file(RunArguments& arguments);

/// The options, checked as far as they can be before any rank starts; makes nothing. Throws `ValueError`.
train::Options read_checked_options(const RunArguments& arguments, const comm::Environment& environment);

/// The words of `trireme train` with these arguments, for a `Command`.
std::vector<std::string> train_words(const RunArguments& arguments);

}  // namespace trireme::cli
