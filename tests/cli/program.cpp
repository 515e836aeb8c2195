#include "tests/cli/program.h"

#include <poll.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/processes.h"
#include "trireme/data/token_file.h"

namespace trireme::cli {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::vector<std::string> named(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "trireme");
  return arguments;
}

Variables clean(Variables variables) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                           "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID",
                           "TORCHELASTIC_USE_AGENT_STORE", "TRIREME_LAUNCHER", "TRIREME_PROGRESS"})
    variables.emplace(name, "");
  variables.emplace("OMP_NUM_THREADS", "1");
  return variables;
}

}  // namespace

Program::Program(std::vector<std::string> arguments, Variables variables)
    : process_({TRIREME, named(std::move(arguments))}, clean(std::move(variables))) {}

void Program::read_some() {
  std::array<pollfd, 2> waits{{{process_.output(), POLLIN, 0}, {process_.errors(), POLLIN, 0}}};
  poll(waits.data(), waits.size(), 20);
  read_available(process_.output(), out_);
  read_available(process_.errors(), err_);
}

int Program::wait() {
  const auto limit = Clock::now() + 120s;
  for (bool ended = false; !ended;) {
    ended = process_.poll().has_value();
    read_some();
    if (!ended && Clock::now() > limit) process_.send(SIGKILL);
  }
  return process_.ending()->signal != 0 ? -process_.ending()->signal : process_.ending()->code;
}

bool Program::prints(const std::string& part) {
  const auto limit = Clock::now() + 60s;
  while (out_.find(part) == std::string::npos && !process_.poll() && Clock::now() < limit) read_some();
  return out_.find(part) != std::string::npos;
}

std::vector<pid_t> Program::children() const {
  const std::string id = std::to_string(process_.id());
  std::ifstream file("/proc/" + id + "/task/" + id + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

std::string write_run(const testing::TemporaryDirectory& directory, int64_t steps) {
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3};
  const std::vector<int64_t> starts{0, 4};
  data::write_token_file(directory / "corpus.safetensors", tokens, starts);
  const nlohmann::json run{{"model",
                            {{"config",
                              {{"model_type", "llama"},
                               {"vocab_size", 8},
                               {"hidden_size", 16},
                               {"intermediate_size", 16},
                               {"num_hidden_layers", 1},
                               {"num_attention_heads", 2}}}}},
                           {"data", {{"path", directory / "corpus.safetensors"}, {"sequence_length", 8}}},
                           {"steps", steps},
                           // All of this small model would be small enough to be replicated.
                           {"zero_optimization", {{"stage3_param_persistence_threshold", 0}}},
                           {"output", directory / "out"}};
  return testing::write_text(directory / "run.json", run.dump());
}

}  // namespace trireme::cli
