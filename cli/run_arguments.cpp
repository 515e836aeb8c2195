#include "cli/run_arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <thread>

#include "trireme/core/check.h"
#include "trireme/core/text.h"
#include "trireme/train/output.h"
#include "trireme/train/trainer.h"

namespace trireme::cli {
namespace {

// Each rank is a process: a slip of the finger must not exhaust the machine.
int64_t most_local_ranks() { return std::max<int64_t>(64, 4 * int64_t(std::thread::hardware_concurrency())); }

}  // namespace

std::string fault_of_integer(const std::string& text, int64_t low, int64_t high) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool too_large = error == std::errc::result_out_of_range || number > high;
  if (error == std::errc() && end == text.data() + text.size() && number >= low && !too_large) return "";
  return core::concatenate("must be ", core::integer_rule(low, high, too_large), "; got ", text);
}

void add_run_arguments(CLI::App& command, RunArguments& arguments, const std::string& ranks) {
  command.add_option("RUN.json", arguments.options_file, "Options file (JSON, // comments allowed)");
  command.add_option("--ranks", arguments.ranks, ranks)
      ->check([](const std::string& text) { return fault_of_integer(text, 1, train::kMostRanks); })
      ->type_name("N");
  command
      .add_option("--set", arguments.overrides,
                  "Set an option over the file's; may be repeated, the last one of a key wins")
      ->type_name("KEY=VALUE");
}

void give_back_file(RunArguments& arguments) {
  auto& overrides = arguments.overrides;
  const auto file = std::find_if(overrides.begin(), overrides.end(),
                                 [](const std::string& text) { return text.find('=') == text.npos; });
  if (!arguments.options_file.empty() || file == overrides.end()) return;
  arguments.options_file = *file;
  overrides.erase(file);
}

train::Options read_checked_options(const RunArguments& arguments, const comm::Environment& environment) {
  core::check_value(!arguments.options_file.empty(),
                    "[cli] an options file must be given, such as run.json; it is missing");
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
  return options;
}

std::vector<std::string> train_words(const RunArguments& arguments) {
  std::vector<std::string> words{"trireme", "train", arguments.options_file};
  for (const std::string& override : arguments.overrides) {
    words.emplace_back("--set");
    words.push_back(override);
  }
  return words;
}

}  // namespace trireme::cli
