// `trireme plan`: what a run takes of each rank's memory, without running it.
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/launcher.h"
#include "cli/plan_report.h"
#include "cli/run_arguments.h"
#include "trireme/core/check.h"
#include "trireme/core/json.h"
#include "trireme/core/memory.h"
#include "trireme/core/text.h"
#include "trireme/plan/memory_plan.h"
#include "trireme/train/options.h"
#include "trireme/train/overrides.h"
#include "trireme/train/planning.h"
#include "trireme/train/progress.h"

namespace trireme::cli {
namespace {

struct Arguments {
  RunArguments run;
  bool as_json = false;
};

/// The options that a plan depends on. Neither a token file nor a number of steps is needed.
train::Options read_planned_options(const RunArguments& run) {
  core::check_value(!run.options_file.empty(),
                    "[cli] an options file must be given, such as run.json; it is missing");
  auto json = core::read_json(run.options_file, core::JsonComments::allowed);
  train::apply_overrides(json, run.overrides);
  if (json.is_object()) {
    if (json.contains("data") && json["data"].is_object()) json["data"].emplace("path", "none");
    json.emplace("steps", 1);
  }
  auto options = train::parse_options(json);
  train::check_world(options, run.ranks);
  if (options.model.path.empty()) model::refuse_misspelt_keys(options.model.config, "model.config");
  return options;
}

/// That compute, of each rank on this machine.
int64_t threads(int64_t ranks) {
  const char* chosen = std::getenv("OMP_NUM_THREADS");
  const bool shared_out = ranks > 1 && (!chosen || !*chosen);
  return shared_out ? threads_of_rank(ranks) : at::get_num_threads();
}

void print(std::ostream& out, const Arguments& arguments, const plan::Setting& setting,
           const plan::MemoryPlan& plan) {
  out << "plan       " << arguments.run.options_file << ": " << core::counted(setting.ranks, "rank")
      << (setting.on_cpu ? " on CPUs" : " on GPUs") << ", sequence parallel " << setting.sequence_ranks
      << ", " << setting.sequence << " tokens a sequence, ZeRO stage " << setting.stage << "\npeak       "
      << (plan.moment == "loss" ? "in the loss" : core::concatenate("in the ", plan.moment, " pass"))
      << ", of the rank that takes most\n\n";
  print_parts(out, plan, setting.on_cpu);
  if (!setting.on_cpu)
    out << "\nnote       these are the allocator's bytes: a CUDA context takes about 0.5 GiB of the device "
           "besides\n";
  out << std::flush;
}

int plan_run(Arguments arguments) {
  give_back_file(arguments.run);
  const auto options = read_planned_options(arguments.run);
  const bool on_cpu = options.device == train::DeviceChoice::cpu ||
                      (options.device == train::DeviceChoice::automatic && !at::globalContext().hasCUDA());
  const int64_t ranks = arguments.run.ranks;
  const auto setting =
      train::plan_setting(options, train::model_config(options.model), ranks, on_cpu, threads(ranks));
  auto plan = plan::plan_memory(setting);
  if (on_cpu) plan.device[plan::Part::base] += core::resident_bytes();
  if (!arguments.as_json) {
    print(std::cout, arguments, setting, plan);
    return kSuccess;
  }
  nlohmann::ordered_json json{{"ranks", ranks}, {"sequence_length", setting.sequence}};
  json.update(to_json(plan));
  std::cout << json.dump(2) << std::endl;
  return kSuccess;
}

constexpr const char* kPlanFooter =
    R"(Examples:
  trireme plan run.json --ranks 2
  trireme plan run.json --ranks 2 --set zero_optimization.stage=2 --json)";

}  // namespace

void add_plan(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("plan", "Say what a run takes of each rank's memory, by part");
  add_run_arguments(*command, arguments->run, "Ranks of the run");
  command->add_flag("--json", arguments->as_json, "Print one JSON object, in bytes");
  command->footer(kPlanFooter);
  command->callback([arguments, &chosen] { chosen = [arguments] { return plan_run(*arguments); }; });
}

}  // namespace trireme::cli
