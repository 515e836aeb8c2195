// The `trireme` program: finds the subcommand, runs it, and turns what it throws into a message and an exit
// code.
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>

#include "cli/commands.h"
#include "cli/error_mark.h"
#include "cli/exit_codes.h"
#include "cli/memory_settings.h"
#include "cli/parse_error.h"
#include "trireme/core/check.h"

namespace trireme::cli {
namespace {

/// Ends this process at once: LibTorch takes half a second to unload, in which nobody would know why.
[[noreturn]] void report(std::string_view message, int exit_code) {
  const bool launched = std::getenv("TRIREME_LAUNCHER") != nullptr;
  std::cout << std::flush;
  std::cerr << (launched ? error_mark(exit_code) : "") << "error: " << message << std::endl;
  std::_Exit(exit_code);
}

/// What LibTorch warns of when ranks lose each other is backtraces; errors say the same in words.
void silence_warnings() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
}

int run(const Action& action) {
  try {
    return action();
  } catch (const core::ValueError& error) {
    report(error.what(), kUserError);
  } catch (const core::CommunicationError& error) {
    report(error.what(), std::getenv("TRIREME_LAUNCHER") ? kPeerLost : kFailure);
  } catch (const c10::Error& error) {
    report(error.what_without_backtrace(), kFailure);
  } catch (const std::bad_alloc&) {
    report("out of memory", kFailure);
  } catch (const std::exception& error) {
    report(error.what(), kFailure);
  }
}

int run(int count, char** words) {
  CLI::App program("Trains transformer language models on sequences that do not fit on one device.",
                   "trireme");
  program.set_version_flag("--version", "trireme " TRIREME_VERSION);
  program.require_subcommand(1);
  program.footer(
      "`trireme COMMAND --help` says more.\n\nExample:\n  trireme prepare docs/ --output corpus.safetensors\n"
      "  trireme train run.json --ranks 2");
  silence_warnings();
  prefer_tight_allocation();
  Action chosen;
  add_train(program, chosen);
  add_tune(program, chosen);
  add_plan(program, chosen);
  add_prepare(program, chosen);
  add_info(program, chosen);
  try {
    program.parse(count, words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // help was asked for
    report(describe_parse_error(program, error), kUserError);
  }
  return run(chosen);
}

}  // namespace
}  // namespace trireme::cli

int main(int count, char** words) { return trireme::cli::run(count, words); }
