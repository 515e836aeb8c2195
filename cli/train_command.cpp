// `trireme train`: as one rank of whatever started this process, or as the launcher of several.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/launcher.h"
#include "trireme/comm/environment.h"
#include "trireme/comm/store.h"
#include "trireme/core/check.h"
#include "trireme/core/text.h"
#include "trireme/train/option_list.h"
#include "trireme/train/options.h"
#include "trireme/train/output.h"
#include "trireme/train/trainer.h"

namespace trireme::cli {
namespace {

struct Arguments {
  std::string options_file;
  std::vector<std::string> overrides;
  std::string timeline;
  int64_t ranks = 1;
};

/// `--set a=1 run.json` hands the file to `--set`, which may take several values: gives it back.
void give_back_file(Arguments& arguments) {
  auto& overrides = arguments.overrides;
  const auto file = std::find_if(overrides.begin(), overrides.end(),
                                 [](const std::string& text) { return text.find('=') == text.npos; });
  if (!arguments.options_file.empty() || file == overrides.end()) return;
  arguments.options_file = *file;
  overrides.erase(file);
}

/// CLI11's check of --ranks: empty where `text` is right.
std::string fault_of_ranks(const std::string& text) {
  int64_t ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  const bool too_large = error == std::errc::result_out_of_range || ranks > train::kMostRanks;
  if (error == std::errc() && end == text.data() + text.size() && ranks >= 1 && !too_large) return "";
  return core::concatenate("must be ", core::integer_rule(1, train::kMostRanks, too_large), "; got ", text);
}

// Each rank is a process: a slip of the finger must not exhaust the machine.
int64_t most_local_ranks() { return std::max<int64_t>(64, 4 * int64_t(std::thread::hardware_concurrency())); }

int launch_ranks(const Arguments& arguments) {
  const comm::StoreServer store;
  LaunchOptions launch_options;
  launch_options.command = {"/proc/self/exe", {"trireme", "train", arguments.options_file}};
  for (const std::string& override : arguments.overrides) {
    launch_options.command.arguments.emplace_back("--set");
    launch_options.command.arguments.push_back(override);
  }
  if (!arguments.timeline.empty()) {
    launch_options.command.arguments.emplace_back("--timeline");
    launch_options.command.arguments.push_back(arguments.timeline);
  }
  launch_options.ranks = arguments.ranks;
  launch_options.port = store.port();
  launch_options.last_seen = [&store](int64_t rank) { return store.last_seen(rank); };
  launch_options.rewrites_progress = isatty(STDOUT_FILENO) == 1;
  return launch(launch_options, std::cout, std::cerr);
}

train::Options read_checked_options(const Arguments& arguments, const comm::Environment& environment) {
  core::check_value(!arguments.options_file.empty(),
                    "[cli] an options file must be given, as in `trireme train run.json`; it is missing");
  core::check_value(arguments.ranks == 1 || environment.world_size == 1,
                    "[cli] --ranks must be left out where ranks were started already; got --ranks ",
                    arguments.ranks, " in rank ", environment.rank, " of ", environment.world_size, " (",
                    environment.origin, ")");
  core::check_value(arguments.ranks <= most_local_ranks(), "[cli] --ranks must be at most ",
                    most_local_ranks(), " on this machine of ", std::thread::hardware_concurrency(),
                    " processors; got ", arguments.ranks,
                    "; start ranks on other machines through torchrun or srun");
  train::Options options = train::read_options(arguments.options_file, arguments.overrides);
  train::check_world(options, std::max(arguments.ranks, environment.world_size));
  train::check_inputs(options);
  train::check_output(options);
  train::check_device(options);
  if (environment.rank == 0) train::make_output(options);
  return options;
}

/// Whether this process tells what all ranks of its machine find alike. Under our launcher each one does: the
/// launcher may hear any of them first, and prints the same words once.
bool speaks_for_all(const comm::Environment& environment) {
  return environment.local_rank == 0 || std::getenv("TRIREME_LAUNCHER");
}

int train(Arguments arguments) {
  give_back_file(arguments);
  const auto environment =
      comm::read_environment([](const char* name) -> const char* { return std::getenv(name); });
  train::Options options;
  try {
    options = read_checked_options(arguments, environment);
  } catch (const core::ValueError&) {
    if (speaks_for_all(environment)) throw;
    return kUserError;  // all ranks of a machine read the same
  }
  if (arguments.ranks > 1) {
    const int exit_code = launch_ranks(arguments);
    if (exit_code != kSuccess) train::discard_partial_model(options);
    return exit_code;
  }
  try {
    train::train(options, environment, arguments.timeline);
  } catch (const core::RunError&) {
    if (speaks_for_all(environment)) throw;
    return kFailure;
  }
  return kSuccess;
}

constexpr const char* kTrainFooter =
    R"(Without --ranks, this process is one rank of the torchrun, mpirun or srun that started it, or the only one.

Examples:
  trireme train run.json --ranks 2
  trireme train run.json --set steps=100 --set optimizer.params.lr=3e-4
  torchrun --nproc-per-node 8 --no-python trireme train run.json
  srun --ntasks-per-node 8 trireme train run.json)";

}  // namespace

void add_train(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("train", "Train a model as an options file says");
  command->add_option("RUN.json", arguments->options_file, "Options file (JSON, // comments allowed)");
  command->add_option("--ranks", arguments->ranks, "Start so many ranks on this machine")
      ->check(fault_of_ranks)
      ->type_name("N");
  command
      ->add_option("--set", arguments->overrides,
                   "Set an option over the file's; may be repeated, the last one of a key wins")
      ->type_name("KEY=VALUE");
  command
      ->add_option(
          "--timeline", arguments->timeline,
          "Write when units were used, gathered and reduced, for chrome://tracing or ui.perfetto.dev")
      ->type_name("FILE");
  command->add_flag_callback(
      "--help-options",
      [] {
        train::print_options(std::cout);
        throw CLI::Success();
      },
      "Print every option of the file, its default and its meaning, and end");
  command->footer(kTrainFooter);
  command->callback([arguments, &chosen] { chosen = [arguments] { return train(*arguments); }; });
}

}  // namespace trireme::cli
