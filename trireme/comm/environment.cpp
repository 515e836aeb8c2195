#include "trireme/comm/environment.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "trireme/core/check.h"
#include "trireme/core/text.h"

namespace trireme::comm {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 31;
constexpr int kDefaultPort = 29500;  // torchrun's too
constexpr uint64_t kFirstPort = 20000;
constexpr uint64_t kPorts = 10000;  // below the ports that systems hand out for outgoing connections

std::optional<int64_t> to_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

/// Reads variables and refuses them by name.
class Variables {
 public:
  explicit Variables(const GetVariable& get) : get_(get) {}

  std::optional<std::string> text(const char* name) const {
    const char* value = get_(name);
    if (!value || !*value) return {};
    return std::string(value);
  }

  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const {
    const auto value = text(name);
    if (!value) return {};
    const auto number = to_integer(*value);
    const bool port = high == std::numeric_limits<uint16_t>::max();  // whose limit is worth saying
    core::check_value(number && *number >= low && *number <= high, "[comm] the variable ", name, " must be ",
                      core::integer_rule(low, high, port || (number && *number > high)), "; got \"", *value,
                      '"');
    return number;
  }

  int64_t required(const char* name, int64_t low, int64_t high, const char* because_of) const {
    const auto value = integer(name, low, high);
    if (value) return *value;
    throw core::ValueError(core::concatenate("[comm] the variable ", name, " must be set where ", because_of,
                                             " is; it is missing"));
  }

  /// The first of two variables that is set.
  std::optional<std::string> either(const char* first, const char* second) const {
    const auto value = text(first);
    return value ? value : text(second);
  }

 private:
  const GetVariable& get_;
};

/// Names of the variables that hold rank and world size, and of their local counterparts.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
};

void check_ranks(const Environment& environment, const Names& names) {
  const auto check = [](int64_t rank, int64_t size, const char* rank_name, const char* size_name) {
    core::check_value(rank < size, "[comm] the variable ", rank_name, " must be below ", size_name, "; got ",
                      rank, " and ", size);
  };
  check(environment.rank, environment.world_size, names.rank, names.size);
  check(environment.local_rank, environment.local_world_size, names.local_rank, names.local_size);
  core::check_value(environment.local_world_size <= environment.world_size, "[comm] the variable ",
                    names.local_size, " must be at most ", names.size, "; got ", environment.local_world_size,
                    " and ", environment.world_size);
}

/// Rank and world size, and the local ones where they are given (else `local_rank` and `local_world_size`
/// stay).
void read_ranks(const Variables& variables, const Names& names, Environment& environment) {
  environment.world_size = variables.required(names.size, 1, kMostRanks, names.rank);
  environment.rank = variables.required(names.rank, 0, kMostRanks, names.size);
  if (variables.has(names.local_rank) || variables.has(names.local_size)) {
    environment.local_rank = variables.required(names.local_rank, 0, kMostRanks, names.local_size);
    environment.local_world_size = variables.required(names.local_size, 1, kMostRanks, names.local_rank);
  }
}

std::optional<int> master_port(const Variables& variables) {
  return variables.integer("MASTER_PORT", 1, std::numeric_limits<uint16_t>::max());
}

int port_of(uint64_t job) { return int(kFirstPort + job % kPorts); }

uint64_t hash_of(std::string_view text) {  // FNV-1a: the same on every machine, unlike std::hash
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 1099511628211u;
  return hash;
}

Environment read_torchrun(const Variables& variables) {
  Environment environment;
  environment.origin = variables.has("TRIREME_LAUNCHER") ? "trireme --ranks" : "torchrun";
  const Names names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  read_ranks(variables, names, environment);
  const auto address = variables.text("MASTER_ADDR");
  const auto port = master_port(variables);
  core::check_value((address && port) || environment.world_size == 1, "[comm] the variable ",
                    address ? "MASTER_PORT" : "MASTER_ADDR",
                    " must be set where WORLD_SIZE is above 1; it is missing");
  environment.master_address = address.value_or(environment.master_address);
  environment.port = port.value_or(0);
  const bool local = environment.master_address == "127.0.0.1" || environment.master_address == "localhost";
  if (local && !variables.has(names.local_rank)) {  // ranks started by hand on one machine
    environment.local_rank = environment.rank;
    environment.local_world_size = environment.world_size;
  }
  check_ranks(environment, names);
  environment.external_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  core::check_value(
      !environment.external_store || (address && port),
      "[comm] the variables MASTER_ADDR and MASTER_PORT must be set where TORCHELASTIC_USE_AGENT_STORE "
      "is True; one is missing");
  const auto restarts =
      variables.integer("TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<int64_t>::max());
  if (restarts) environment.store_prefix = core::concatenate("trireme/attempt_", *restarts, "/");
  return environment;
}

Environment read_open_mpi(const Variables& variables) {
  Environment environment;
  environment.origin = "Open MPI";
  const Names names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE"};
  read_ranks(variables, names, environment);
  check_ranks(environment, names);
  if (environment.world_size == 1) return environment;
  const auto address = variables.text("MASTER_ADDR");
  core::check_value(
      address || environment.local_world_size == environment.world_size,
      "[comm] the variable MASTER_ADDR must name the host of rank 0 where mpirun starts ranks on more "
      "than one machine; it is missing; do mpirun -x MASTER_ADDR=HOST");
  environment.master_address = address.value_or(environment.master_address);
  const auto job = variables.either("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid");
  environment.port = master_port(variables).value_or(job ? port_of(hash_of(*job)) : kDefaultPort);
  return environment;
}

/// A batch script has SLURM_PROCID=0 as well, but is no task of a step: `srun` starts those.
bool is_slurm_task(const Variables& variables) {
  const bool batch_script = variables.text("ENVIRONMENT") == "BATCH" && !variables.has("SLURM_STEP_ID");
  return variables.has("SLURM_PROCID") && !batch_script;
}

/// Tasks of this machine, from the first variable that tells.
int64_t slurm_local_tasks(const Variables& variables, int64_t world_size) {
  const auto counts = variables.either("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  if (counts) return count_at(*counts, variables.integer("SLURM_NODEID", 0, kMostRanks).value_or(0));
  if (const auto tasks = variables.integer("SLURM_NTASKS_PER_NODE", 1, kMostRanks))
    return std::min(*tasks, world_size);
  const auto nodes = variables.integer(
      variables.has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES", 1, kMostRanks);
  return (world_size + nodes.value_or(1) - 1) / nodes.value_or(1);
}

Environment read_slurm(const Variables& variables) {
  Environment environment;
  environment.origin = "Slurm";
  const char* size = variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  environment.rank = variables.required("SLURM_PROCID", 0, kMostRanks, size);
  environment.world_size = variables.required(size, 1, kMostRanks, "SLURM_PROCID");
  environment.local_rank = variables.required("SLURM_LOCALID", 0, kMostRanks, "SLURM_PROCID");
  environment.local_world_size = slurm_local_tasks(variables, environment.world_size);
  check_ranks(environment, {"SLURM_PROCID", size, "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"});
  if (environment.world_size == 1) return environment;
  auto nodes = variables.either("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
  if (!nodes) nodes = variables.text("SLURM_NODELIST");
  const auto address = variables.text("MASTER_ADDR");
  core::check_value(
      address || nodes || environment.local_world_size == environment.world_size,
      "[comm] the variable SLURM_JOB_NODELIST or MASTER_ADDR must be set where there is more than one "
      "machine; both are missing");
  if (address)
    environment.master_address = *address;
  else if (nodes)
    environment.master_address = first_host(*nodes);
  const auto job = variables.integer("SLURM_JOB_ID", 0, std::numeric_limits<uint32_t>::max());
  const auto step = variables.integer("SLURM_STEP_ID", 0, std::numeric_limits<uint32_t>::max());
  environment.port =
      master_port(variables).value_or(job ? port_of(uint64_t(31 * *job + step.value_or(0))) : kDefaultPort);
  return environment;
}

Environment read_place(const Variables& variables) {
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) return read_torchrun(variables);
  if (variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE"))
    return read_open_mpi(variables);
  if (is_slurm_task(variables)) return read_slurm(variables);
  return {};
}

}  // namespace

Environment read_environment(const GetVariable& get_variable) {
  Environment environment = read_place(Variables(get_variable));
  const char* debug = get_variable("TORCH_DISTRIBUTED_DEBUG");
  environment.checks_order = debug && std::string_view(debug) == "DETAIL";
  return environment;
}

std::string first_host(std::string_view node_list) {
  const auto check = [&](bool ok) {
    core::check_value(ok, "[comm] a Slurm node list must be like node[003-010,12]; got \"", node_list, '"');
  };
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      check(node_list[i] != ']');
      host += node_list[i];
      continue;
    }
    const size_t end = node_list.find(']', i);
    check(end != std::string_view::npos);
    const std::string_view ranges = node_list.substr(i + 1, end - i - 1);
    const std::string_view number = ranges.substr(0, ranges.find_first_of("-,"));
    check(!number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos);
    host += number;  // with its leading zeros
    i = end;
  }
  check(!host.empty());
  return host;
}

int64_t count_at(std::string_view counts, int64_t index) {
  const auto number = [&](std::string_view text) {
    const int64_t value = to_integer(text).value_or(0);
    core::check_value(value >= 1 && value <= kMostRanks,
                      "[comm] a Slurm task count must be like 2(x3),1 with an entry for node ", index,
                      "; got \"", counts, '"');
    return value;
  };
  std::string_view rest = counts;
  for (int64_t first = 0;;) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const size_t open = entry.find("(x");
    const int64_t count = number(entry.substr(0, open));
    if (open == std::string_view::npos)
      ++first;
    else  // without its ")" what is between is no number
      first += number(entry.ends_with(')') ? entry.substr(open + 2, entry.size() - open - 3) : "");
    if (index < first) return count;
  }
}

}  // namespace trireme::comm
