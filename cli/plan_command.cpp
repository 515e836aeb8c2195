// `trireme plan`: what a run takes of each rank's memory, and the longest sequence that fits, without
// running.
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/launcher.h"
#include "cli/memory_size.h"
#include "cli/plan_report.h"
#include "cli/published_report.h"
#include "cli/run_arguments.h"
#include "trireme/core/check.h"
#include "trireme/core/json.h"
#include "trireme/core/memory.h"
#include "trireme/core/text.h"
#include "trireme/plan/machine.h"
#include "trireme/plan/shapes.h"
#include "trireme/train/options.h"
#include "trireme/train/overrides.h"
#include "trireme/train/planning.h"
#include "trireme/train/progress.h"

namespace trireme::cli {
namespace {

using nlohmann::json;

struct Arguments {
  RunArguments run;
  std::string model;
  std::string device;
  int64_t sequence = 0;  ///< 0: as the options say
  std::string memory, host_memory;
  int64_t ranks_per_node = 0;  ///< 0: all, at most `kRanksOfANode`
  bool as_json = false;
  bool table = false;
};

constexpr int64_t kRanksOfANode = 8;

void check_arguments(const Arguments& arguments) {
  const bool names_a_run = !arguments.run.options_file.empty() || !arguments.model.empty();
  const bool says_more = names_a_run || arguments.as_json || !arguments.memory.empty() ||
                         !arguments.device.empty() || arguments.sequence > 0 || arguments.run.ranks != 1 ||
                         !arguments.run.overrides.empty();
  core::check_value(!arguments.table || !says_more,
                    "[cli] --table must be given alone: its runs are those that were published; got more");
  core::check_value(names_a_run || arguments.table,
                    "[cli] an options file, such as run.json, or --model must be given; both are missing");
  core::check_value(arguments.host_memory.empty() || !arguments.memory.empty(),
                    "[cli] --host-memory must be given with --memory, of which it is the second limit; got ",
                    arguments.host_memory, " alone");
  core::check_value(arguments.ranks_per_node == 0 || !arguments.host_memory.empty(),
                    "[cli] --ranks-per-node must be given with --host-memory, which these ranks share; got ",
                    arguments.ranks_per_node, " alone");
  core::check_value(arguments.ranks_per_node <= arguments.run.ranks,
                    "[cli] --ranks-per-node must be at most --ranks; got ", arguments.ranks_per_node, " of ",
                    core::counted(arguments.run.ranks, "rank"));
}

/// What --model plans where no options file says more: long sequences on GPUs.
json default_options(int64_t ranks) {
  return {{"sequence_parallel_size", ranks},
          {"bf16", {{"enabled", true}}},
          {"activation_checkpointing", {{"policy", "layer"}, {"offload", {{"device", "cpu"}}}}}};
}

/// Neither a token file nor a number of steps is needed. Without a length of the sequence, it is 0.
train::Options read_planned_options(const Arguments& arguments) {
  const RunArguments& run = arguments.run;
  json options = run.options_file.empty() ? default_options(run.ranks)
                                          : core::read_json(run.options_file, core::JsonComments::allowed);
  std::vector<std::string> overrides = run.overrides;
  if (!arguments.model.empty())
    overrides.insert(overrides.begin(), "model.config=" + plan::shape(arguments.model).dump());
  if (!arguments.device.empty()) overrides.push_back("device=" + arguments.device);
  if (arguments.sequence > 0)
    overrides.push_back("data.sequence_length=" + std::to_string(arguments.sequence));
  train::apply_overrides(options, overrides);
  bool has_length = true;
  if (options.is_object()) {
    options.emplace("steps", 1);
    if (!arguments.model.empty()) options.emplace("device", "cuda");
    json& data = options.emplace("data", json::object()).first.value();
    if (data.is_object()) {
      data.emplace("path", "none");
      has_length = !data.emplace("sequence_length", train::kMostRanks).second;
    }
  }
  auto planned = train::parse_options(options);
  train::check_world(planned, run.ranks);
  if (planned.model.path.empty()) model::refuse_misspelt_keys(planned.model.config, "model.config");
  if (!has_length) planned.data.sequence_length = 0;
  return planned;
}

/// That compute, of each rank on this machine.
int64_t threads(int64_t ranks) {
  const char* chosen = std::getenv("OMP_NUM_THREADS");
  const bool shared_out = ranks > 1 && (!chosen || !*chosen);
  return shared_out ? threads_of_rank(ranks) : at::get_num_threads();
}

/// Nothing without --memory. `process`: bytes of this process, which a rank on a CPU takes too.
std::optional<plan::Machine> machine_of(const Arguments& arguments, bool on_cpu, int64_t process) {
  if (arguments.memory.empty()) return {};
  core::check_value(!on_cpu || arguments.host_memory.empty(),
                    "[cli] --host-memory is of machines with GPUs; got ", arguments.host_memory,
                    " for a run on CPUs; give --memory alone, what a rank may take, or --device cuda");
  plan::Machine machine{.device_bytes = *parse_memory(arguments.memory),
                        .taken = on_cpu ? process : plan::kContextBytes};
  if (!arguments.host_memory.empty()) {
    machine.host_bytes = *parse_memory(arguments.host_memory);
    machine.ranks = arguments.ranks_per_node > 0 ? arguments.ranks_per_node
                                                 : std::min(arguments.run.ranks, kRanksOfANode);
  }
  return machine;
}

struct Planned {
  plan::Setting setting;
  plan::MemoryPlan memory;
  std::optional<plan::Machine> machine;
  std::optional<plan::LongestSequence> longest;  ///< with a machine
};

Planned planned(const Arguments& arguments) {
  const auto options = read_planned_options(arguments);
  const bool on_cpu = options.device == train::DeviceChoice::cpu ||
                      (options.device == train::DeviceChoice::automatic && !at::globalContext().hasCUDA());
  const int64_t ranks = arguments.run.ranks, process = on_cpu ? core::resident_bytes() : 0;
  Planned planned{.setting = train::plan_setting(options, train::model_config(options.model), ranks, on_cpu,
                                                 threads(ranks)),
                  .memory = {},
                  .machine = machine_of(arguments, on_cpu, process),
                  .longest = {}};
  auto& setting = planned.setting;
  if (planned.machine) planned.longest = plan::longest_sequence(setting, *planned.machine);
  core::check_value(
      setting.sequence > 0 || planned.longest,
      "[cli] a sequence's tokens must be given: --sequence, data.sequence_length in the options "
      "file, or --memory for the longest that fits; all are missing");
  if (setting.sequence == 0) setting.sequence = std::max(setting.sequence_ranks, planned.longest->tokens);
  planned.memory = plan::plan_memory(setting);
  planned.memory.device[plan::Part::base] += process;
  return planned;
}

void print_longest(std::ostream& out, const Planned& planned) {
  const auto& machine = *planned.machine;
  const auto [tokens, limit] = *planned.longest;
  out << "\nlongest    ";
  if (limit == plan::Limit::none) {
    out << tokens << " tokens fit, and longer ones are not planned\n";
    return;
  }
  if (tokens > 0)
    out << tokens << " tokens; longer ones take more than ";
  else
    out << "none: a sequence of " << core::counted(planned.setting.sequence_ranks, "token")
        << " takes more than ";
  if (limit == plan::Limit::host)
    out << train::format_bytes(machine.host_share()) << " of the host's memory a rank\n";
  else
    out << train::format_bytes(machine.device_bytes)
        << (planned.setting.on_cpu ? " of memory a rank\n" : " of a device\n");
}

std::string_view limit_name(plan::Limit limit) {
  if (limit == plan::Limit::none) return "nothing";
  return limit == plan::Limit::host ? "host" : "device";
}

/// What waits for the backward pass, and where.
std::string kept_activations(const plan::Setting& setting) {
  if (setting.recompute == model::Recompute::nothing) return "all activations";
  std::string text = "layers' inputs";
  if (setting.recompute == model::Recompute::all_but_attention) text += " and attention's outputs";
  if (setting.recompute_every > 1)
    text += core::concatenate(" of one layer in ", setting.recompute_every, ", everything of the others");
  if (setting.activations.on == core::Residence::disk) return text + ", on a disk";
  return text +
         (setting.activations.on == core::Residence::host && !setting.on_cpu ? ", in the host's memory" : "");
}

std::string place_of(std::string_view moment) {
  if (moment == "loss") return "in the loss";
  if (moment == "reduction") return "as gradients are reduced";
  return core::concatenate("in the ", moment, " pass");
}

void print(std::ostream& out, const Arguments& arguments, const Planned& planned) {
  const auto& [setting, memory, machine, longest] = planned;
  const std::string& file = arguments.run.options_file;
  out << "plan       " << arguments.model << (file.empty() || arguments.model.empty() ? "" : " as in ")
      << file << ": " << core::counted(setting.ranks, "rank") << (setting.on_cpu ? " on CPUs" : " on GPUs")
      << ", sequence parallel " << setting.sequence_ranks << ", " << setting.sequence
      << " tokens a sequence, ZeRO stage " << setting.stage << "\nkept       " << kept_activations(setting)
      << "\npeak       " << place_of(memory.moment) << ", of the rank that takes most\n\n";
  std::vector<PartsColumn> columns{{setting.on_cpu ? "memory" : "device", memory.device}};
  if (!setting.on_cpu) columns.push_back({"host", memory.host});
  print_parts(out, columns);
  if (memory.disk > 0) out << "\non disk    " << train::format_bytes(memory.disk) << " a rank\n";
  if (longest) print_longest(out, planned);
  if (!setting.on_cpu)
    out << "\nnote       the device's bytes are its allocator's: a CUDA context takes about 0.5 GiB besides"
        << (machine ? "; --memory counts 0.75 GiB for it and for NCCL's buffers, an assumption" : "") << '\n';
  out << std::flush;
}

int plan_run(Arguments arguments) {
  give_back_file(arguments.run);
  check_arguments(arguments);
  if (arguments.table) {
    print_published(std::cout);
    return kSuccess;
  }
  const Planned result = planned(arguments);
  if (!arguments.as_json) {
    print(std::cout, arguments, result);
    return kSuccess;
  }
  nlohmann::ordered_json json{{"ranks", arguments.run.ranks}, {"sequence_length", result.setting.sequence}};
  json.update(to_json(result.memory));
  if (result.longest) {
    json["longest_sequence"] = result.longest->tokens;
    json["limited_by"] = limit_name(result.longest->limit);
  }
  std::cout << json.dump(2) << std::endl;
  return kSuccess;
}

std::string fault_of_device(const std::string& text) {
  return text == "cpu" || text == "cuda" ? "" : "must be cpu or cuda; got " + text;
}

constexpr const char* kPlanFooter =
    R"(Sums the tensors of the step's largest moment; allocators add a little to that. Neither tokens nor a GPU are needed.

Examples:
  trireme plan run.json --ranks 2
  trireme plan run.json --ranks 2 --set zero_optimization.stage=2 --json
  trireme plan run.json --ranks 8 --device cuda --memory 80GiB --host-memory 1TiB
  trireme plan --model meta-llama-8b --ranks 8 --sequence 1000000
  trireme plan --table)";

void add_memory_options(CLI::App& command, Arguments& arguments) {
  command
      .add_option(
          "--memory", arguments.memory,
          "Tell the longest sequence that fits into so much of a rank's device (or CPU rank), as 80GiB")
      ->check(fault_of_memory)
      ->type_name("SIZE");
  command
      .add_option("--host-memory", arguments.host_memory,
                  "And into so much of a machine's memory beside its GPUs; default: no limit")
      ->check(fault_of_memory)
      ->type_name("SIZE");
  command
      .add_option("--ranks-per-node", arguments.ranks_per_node,
                  "Ranks that share that memory; default: all, at most 8")
      ->check([](const std::string& text) { return fault_of_integer(text, 1, train::kMostRanks); })
      ->type_name("N");
}

std::string known_models() {
  std::string names;
  for (const auto name : plan::shape_names()) names += core::concatenate(names.empty() ? "" : ", ", name);
  return names;
}

}  // namespace

void add_plan(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("plan", "Say what a run takes of each rank's memory, by part");
  add_run_arguments(*command, arguments->run, "Ranks of the run");
  command
      ->add_option(
          "--model", arguments->model,
          "Plan this model, on GPUs unless --device says cpu, in place of the file's, which may be left out "
          "(then in bf16, all ranks at one sequence, layers' inputs in the host's memory): " +
              known_models())
      ->type_name("NAME");
  command->add_option("--sequence", arguments->sequence, "Tokens of a sequence, over all ranks that share it")
      ->check([](const std::string& text) { return fault_of_integer(text, 2, plan::kMostTokens); })
      ->type_name("N");
  command
      ->add_option("--device", arguments->device,
                   "cpu or cuda; default: as the options say, cuda with --model")
      ->check(fault_of_device)
      ->type_name("DEVICE");
  add_memory_options(*command, *arguments);
  command->add_flag("--json", arguments->as_json, "Print one JSON object, in bytes");
  command->add_flag("--table", arguments->table,
                    "Compare with what others have published of how much fits, and end");
  command->footer(kPlanFooter);
  command->callback([arguments, &chosen] { chosen = [arguments] { return plan_run(*arguments); }; });
}

}  // namespace trireme::cli
