// `trireme train`: as one rank of whatever started this process, or as the launcher of several.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/launcher.h"
#include "cli/run_arguments.h"
#include "trireme/comm/environment.h"
#include "trireme/comm/store.h"
#include "trireme/core/check.h"
#include "trireme/train/option_list.h"
#include "trireme/train/options.h"
#include "trireme/train/output.h"
#include "trireme/train/trainer.h"

namespace trireme::cli {
namespace {

struct Arguments {
  RunArguments run;
  std::string timeline;
};

int launch_ranks(const Arguments& arguments) {
  const comm::StoreServer store;
  LaunchOptions launch_options;
  launch_options.command = {"/proc/self/exe", train_words(arguments.run)};
  if (!arguments.timeline.empty()) {
    launch_options.command.arguments.emplace_back("--timeline");
    launch_options.command.arguments.push_back(arguments.timeline);
  }
  launch_options.ranks = arguments.run.ranks;
  launch_options.port = store.port();
  launch_options.last_seen = [&store](int64_t rank) { return store.last_seen(rank); };
  launch_options.rewrites_progress = isatty(STDOUT_FILENO) == 1;
  return launch(launch_options, std::cout, std::cerr);
}

train::Options prepared_options(const RunArguments& arguments, const comm::Environment& environment) {
  train::Options options = read_checked_options(arguments, environment);
  if (environment.rank == 0) train::make_output(options);
  return options;
}

/// Whether this process tells what all ranks of its machine find alike. Under our launcher each one does: the
/// launcher may hear any of them first, and prints the same words once.
bool speaks_for_all(const comm::Environment& environment) {
  return environment.local_rank == 0 || std::getenv("TRIREME_LAUNCHER");
}

int train(Arguments arguments) {
  give_back_file(arguments.run);
  const auto environment =
      comm::read_environment([](const char* name) -> const char* { return std::getenv(name); });
  train::Options options;
  try {
    options = prepared_options(arguments.run, environment);
  } catch (const core::ValueError&) {
    if (speaks_for_all(environment)) throw;
    return kUserError;  // all ranks of a machine read the same
  }
  if (arguments.run.ranks > 1) {
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
  add_run_arguments(*command, arguments->run);
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
