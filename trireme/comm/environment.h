// Who this process is among the ranks of a run, from the variables of whatever started it.
//
// In this order: torchrun's variables (also set by `trireme train --ranks N`), Open MPI's, Slurm's, else one
// rank. A variable that is set but empty counts as not set. MASTER_ADDR and MASTER_PORT win over what is
// derived:
//
//            address of rank 0                          port
// torchrun   MASTER_ADDR                                MASTER_PORT
// Open MPI   127.0.0.1 if all ranks are on one machine  20000 + hash of the job's name (PMIX_NAMESPACE or
//                                                       OMPI_MCA_ess_base_jobid) modulo 10000, else 29500
// Slurm      first host of SLURM_STEP_NODELIST,         20000 + (31 x SLURM_JOB_ID + SLURM_STEP_ID) modulo
// 10000,
//            SLURM_JOB_NODELIST or SLURM_NODELIST       else 29500
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace trireme::comm {

struct Environment {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;        ///< among the ranks of this machine
  int64_t local_world_size = 1;  ///< ranks of this machine
  std::string master_address = "127.0.0.1";
  int port = 0;                 ///< of the store at `master_address`; 0: any, as for one rank
  bool external_store = false;  ///< torchrun's agent or our launcher holds the store, not rank 0
  std::string store_prefix;     ///< of every key in the store: differs between restarts that share a store
  bool checks_order = false;    ///< TORCH_DISTRIBUTED_DEBUG=DETAIL: ranks tell each other what comes next
  std::string origin =
      "one process";  ///< "torchrun", "trireme --ranks", "Open MPI", "Slurm" or "one process"
};

/// The value of an environment variable, or null: `getenv`, but for tests.
using GetVariable = std::function<const char*(const char*)>;

/// Throws `ValueError`, naming the variable, for one that is malformed, missing, or contradicts another.
Environment read_environment(const GetVariable& get_variable);

/// The first host of a Slurm node list: "n003" of "n[003-010,12],m1". Throws `ValueError` where it has no
/// such form.
std::string first_host(std::string_view node_list);

/// The number at `index` of a Slurm count list: 2, 2, 2, 1 for "2(x3),1". Throws `ValueError` where it has no
/// such form or no such index.
int64_t count_at(std::string_view counts, int64_t index);

}  // namespace trireme::comm
