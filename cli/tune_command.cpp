// `trireme tune`: finds the options of ZeRO under which a run is fastest on this machine.
#include <ATen/Context.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <system_error>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/memory_size.h"
#include "cli/process.h"
#include "cli/run_arguments.h"
#include "cli/trial.h"
#include "trireme/core/check.h"
#include "trireme/core/json.h"
#include "trireme/core/text.h"
#include "trireme/train/overrides.h"
#include "trireme/train/progress.h"
#include "trireme/train/tuner.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  RunArguments run;
  std::string memory;  ///< as given
  std::string nvme_path;
  std::string output;
  int64_t steps = 3;
};

constexpr int64_t kMostTrialSteps = 1'000'000;

/// NAME.tuned.json beside NAME.json, unless --output says otherwise.
fs::path output_path(const Arguments& arguments) {
  if (!arguments.output.empty()) return arguments.output;
  const fs::path file = arguments.run.options_file;
  return file.parent_path() / (file.stem().string() + ".tuned.json");
}

void check_arguments(const Arguments& arguments, const comm::Environment& environment) {
  std::error_code ignored;
  core::check_value(environment.world_size == 1,
                    "[cli] `trireme tune` starts ranks itself and must be started alone; got rank ",
                    environment.rank, " of ", environment.world_size, " (", environment.origin,
                    "); start it by itself, with --ranks N");
  core::check_value(arguments.nvme_path.empty() || fs::is_directory(arguments.nvme_path, ignored),
                    "[cli] --nvme-path must be a directory; got ", arguments.nvme_path,
                    "; make it, on a disk with room for the states");
  const fs::path output = output_path(arguments);
  core::check_value(!fs::equivalent(output, arguments.run.options_file, ignored),
                    "[cli] --output must not be the options file itself; got ", output.string(),
                    "; name another file");
  core::check_value(output.parent_path().empty() || fs::is_directory(output.parent_path(), ignored),
                    "[cli] --output must lie in a directory that is there; got ", output.string());
}

using OrderedJson = nlohmann::ordered_json;

/// `values`, with the keys of its objects in the order that `order` has them, and new ones last.
OrderedJson in_order_of(const OrderedJson& order, const nlohmann::json& values) {
  if (!values.is_object()) return values;
  OrderedJson out = OrderedJson::object();
  if (order.is_object())
    for (const auto& [key, inner] : order.items())
      if (values.contains(key)) out[key] = in_order_of(inner, values.at(key));
  for (const auto& [key, value] : values.items())
    if (!out.contains(key)) out[key] = in_order_of({}, value);
  return out;
}

/// The user's options with all that --set says and `chosen` set. The output of the run is written out: it
/// would follow from the file's name.
OrderedJson tuned_options(const Arguments& arguments, const train::Options& options,
                          const std::vector<std::string>& chosen) {
  auto json = core::read_json(arguments.run.options_file, core::JsonComments::allowed);
  train::apply_overrides(json, arguments.run.overrides);
  train::apply_overrides(json, chosen);
  json["output"] = options.output;
  std::ifstream file(arguments.run.options_file);
  return in_order_of(OrderedJson::parse(file, nullptr, true, /*ignore_comments=*/true), json);
}

void write_tuned(const Arguments& arguments, const OrderedJson& tuned) {
  const fs::path path = output_path(arguments);
  errno = 0;
  std::ofstream file(path);
  file << tuned.dump(2) << '\n';
  core::check_value(bool(file.flush()), "[cli] the tuned options must be written; got ",
                    std::generic_category().message(errno), " for ", path.string(),
                    "; set --output to another file");
  std::cout << "written    " << path.string() << "; to train with it: trireme train " << path.string();
  if (arguments.run.ranks > 1) std::cout << " --ranks " << arguments.run.ranks;
  std::cout << std::endl;
}

/// A schedule that follows from the number of steps stays that of the whole run: its warm-up may be longer
/// than a trial.
void keep_schedule(RunArguments& run, const train::Options& options) {
  const auto json = train::to_json(options);
  if (const auto scheduler = json.find("scheduler"); scheduler != json.end())
    run.overrides.push_back("scheduler=" + scheduler->dump());
}

void describe(const Arguments& arguments, const train::Options& options, const train::ModelSizes& sizes,
              bool on_cpu) {
  std::cout << "tuning     " << arguments.run.options_file << ": "
            << core::counted(arguments.run.ranks, "rank") << ", ZeRO stage " << options.zero.stage << ", "
            << train::format_count(double(sizes.all)) << " parameters, "
            << train::format_count(double(sizes.largest_unit)) << " in the largest unit\n"
            << "trials     " << arguments.steps << " steps each, the first not counted; memory: "
            << (arguments.memory.empty()
                    ? "no limit"
                    : "at most " + train::format_bytes(*parse_memory(arguments.memory)) + " a rank")
            << '\n';
  if (on_cpu && options.zero.stage > 0)
    std::cout
        << "note       offload to cpu is not tried: the CPU computes, and all states are in its memory\n";
  std::cout << std::flush;
}

int tune(Arguments arguments) {
  give_back_file(arguments.run);
  const auto environment =
      comm::read_environment([](const char* name) -> const char* { return std::getenv(name); });
  const auto options = read_checked_options(arguments.run, environment);
  check_arguments(arguments, environment);
  const bool on_cpu = options.device == train::DeviceChoice::cpu || !at::globalContext().hasCUDA();
  const auto sizes = train::model_sizes(options);
  const train::TuneSpace space(options, sizes, {.computes_on_cpu = on_cpu, .nvme_path = arguments.nvme_path});
  describe(arguments, options, sizes, on_cpu);
  RunArguments trial = arguments.run;
  keep_schedule(trial, options);
  try {
    const ScratchDirectory scratch(options.output + ".tune");
    Trials trials(trial, arguments.steps, scratch);
    const auto measure = [&](const train::TunedOptions& tuned) {
      return trials.measure(space.overrides(tuned));
    };
    const auto chosen = train::Tuner(space, parse_memory(arguments.memory), measure, std::cout).run();
    write_tuned(arguments, tuned_options(arguments, options, space.overrides(chosen)));
  } catch (const Interrupted& interrupted) {
    std::cerr << "trireme: interrupted by " << signal_name(interrupted.signal) << "; nothing is written"
              << std::endl;
    return kSignalBase + interrupted.signal;
  }
  return kSuccess;
}

constexpr const char* kTuneFooter =
    R"(Tries stage3_max_live_parameters, then stage3_prefetch_bucket_size, then offload, a few steps each, and writes the
options file with the best of them set, and with what --set says.

Examples:
  trireme tune run.json --ranks 2 --memory 8GiB
  trireme tune run.json --ranks 2 --nvme-path /mnt/nvme --output best.json)";

}  // namespace

void add_tune(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.add_subcommand("tune", "Find the ZeRO options under which a run is fastest on this machine");
  add_run_arguments(*command, arguments->run);
  command
      ->add_option("--memory", arguments->memory,
                   "Limit of a rank's peak memory, as 8GiB; default: what the machine has")
      ->check(fault_of_memory)
      ->type_name("SIZE");
  command->add_option("--nvme-path", arguments->nvme_path, "Try offload to files in this directory too")
      ->type_name("DIR");
  command->add_option("--steps", arguments->steps, "Steps of each trial, the first not counted; default: 3")
      ->check([](const std::string& text) { return fault_of_integer(text, 2, kMostTrialSteps); })
      ->type_name("N");
  command->add_option("-o,--output", arguments->output, "Options file to write; default: NAME.tuned.json")
      ->type_name("FILE");
  command->footer(kTuneFooter);
  command->callback([arguments, &chosen] { chosen = [arguments] { return tune(*arguments); }; });
}

}  // namespace trireme::cli
