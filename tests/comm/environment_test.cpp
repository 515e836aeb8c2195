#include "trireme/comm/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/errors.h"

namespace trireme::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Variables& variables) {
  return testing::value_error([&] { read(variables); });
}

/// `base` with some variables changed; an empty value stands for one that is not set.
Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

void expect_ranks(const Environment& environment, int64_t rank, int64_t world_size, int64_t local_rank,
                  int64_t local_world_size) {
  EXPECT_EQ(environment.rank, rank);
  EXPECT_EQ(environment.world_size, world_size);
  EXPECT_EQ(environment.local_rank, local_rank);
  EXPECT_EQ(environment.local_world_size, local_world_size);
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "29400"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_NAMESPACE", "prterun-host-77@1"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                       {"SLURM_JOB_NODELIST", "gpu[007-009,12]"},
                       {"SLURM_JOB_ID", "1234"},
                       {"SLURM_STEP_ID", "3"}};

TEST(Environment, IsOneProcessWithoutVariables) {
  const Environment environment = read({});
  expect_ranks(environment, 0, 1, 0, 1);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_EQ(environment.port, 0);
  EXPECT_FALSE(environment.external_store);
  EXPECT_EQ(environment.store_prefix, "");
  EXPECT_EQ(environment.origin, "one process");
}

TEST(Environment, SaysWhetherTheOrderOfCollectivesIsChecked) {
  EXPECT_FALSE(read({}).checks_order);
  EXPECT_FALSE(read({{"TORCH_DISTRIBUTED_DEBUG", "INFO"}}).checks_order);
  EXPECT_TRUE(read({{"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}}).checks_order);
}

TEST(Environment, TakesEmptyVariablesForMissing) {
  expect_ranks(read({{"RANK", ""}, {"WORLD_SIZE", ""}}), 0, 1, 0, 1);
}

TEST(Torchrun, IsRead) {
  const Environment environment = read(kTorchrun);
  expect_ranks(environment, 5, 8, 1, 4);
  EXPECT_EQ(environment.master_address, "node1");
  EXPECT_EQ(environment.port, 29400);
  EXPECT_FALSE(environment.external_store);
  EXPECT_EQ(environment.store_prefix, "");
  EXPECT_EQ(environment.origin, "torchrun");
}

TEST(Torchrun, AgentHoldsTheStore) {
  const Environment environment =
      read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_TRUE(environment.external_store);
  EXPECT_EQ(environment.store_prefix, "trireme/attempt_2/");
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).external_store);
}

TEST(Torchrun, IsToldFromOurLauncher) {
  EXPECT_EQ(read(with(kTorchrun, {{"TRIREME_LAUNCHER", "1"}})).origin, "trireme --ranks");
}

TEST(Torchrun, WinsOverTheOthers) {
  Variables all = kTorchrun;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  all.insert(kSlurm.begin(), kSlurm.end());
  EXPECT_EQ(read(all).rank, 5);
  EXPECT_EQ(read(all).origin, "torchrun");
}

TEST(Torchrun, LocalRanksFollowTheAddressWhereTheyAreMissing) {
  const Variables bare = with(kTorchrun, {{"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}});
  expect_ranks(read(bare), 5, 8, 0, 1);  // one rank a machine
  expect_ranks(read(with(bare, {{"MASTER_ADDR", "localhost"}})), 5, 8, 5, 8);
}

TEST(Torchrun, NeedsNoAddressForOneRank) {
  const Environment environment = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  expect_ranks(environment, 0, 1, 0, 1);
  EXPECT_EQ(environment.port, 0);
}

TEST(Torchrun, RefusesWhatIsMissing) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    EXPECT_THAT(
        refusal(with(kTorchrun, {{name, ""}})),
        AllOf(HasSubstr(std::string("[comm] the variable ") + name + " must be set"), HasSubstr("missing")))
        << name;
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
              HasSubstr("MASTER_ADDR and MASTER_PORT must be set"));
}

TEST(Torchrun, RefusesWhatIsMalformedOrContradictory) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"})
    for (const char* value : {"x", "-1", "1.5", "2 ", "99999999999999999999"})
      EXPECT_THAT(refusal(with(kTorchrun, {{name, value}})),
                  AllOf(HasSubstr(std::string("the variable ") + name + " must be an integer "),
                        HasSubstr(std::string("got \"") + value + '"')));
  EXPECT_THAT(refusal(with(kTorchrun, {{"WORLD_SIZE", "0"}})),
              HasSubstr("WORLD_SIZE must be an integer of at least 1; got \"0\""));
  EXPECT_THAT(refusal(with(kTorchrun, {{"WORLD_SIZE", "99999999999"}})),
              HasSubstr("WORLD_SIZE must be an integer from 1 to 2147483648; got"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"MASTER_PORT", "65536"}})),
              HasSubstr("must be an integer from 1 to 65535; got \"65536\""));
  EXPECT_THAT(refusal(with(kTorchrun, {{"RANK", "8"}})),
              HasSubstr("RANK must be below WORLD_SIZE; got 8 and 8"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"LOCAL_RANK", "4"}})),
              HasSubstr("LOCAL_RANK must be below LOCAL_WORLD_SIZE"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
              HasSubstr("LOCAL_WORLD_SIZE must be at most WORLD_SIZE; got 9 and 8"));
}

TEST(OpenMpi, IsRead) {
  const Environment environment = read(kOpenMpi);
  expect_ranks(environment, 1, 4, 1, 4);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_FALSE(environment.external_store);
  EXPECT_EQ(environment.origin, "Open MPI");
}

TEST(OpenMpi, PortFollowsTheJobAlone) {
  const int port = read(kOpenMpi).port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 30000);
  EXPECT_EQ(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "3"}})).port,
            port);
  EXPECT_NE(read(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-host-78@1"}})).port, port);
  const Variables old = with(kOpenMpi, {{"PMIX_NAMESPACE", ""}, {"OMPI_MCA_ess_base_jobid", "3418357761"}});
  EXPECT_NE(read(old).port, 29500);
  EXPECT_EQ(read(with(kOpenMpi, {{"PMIX_NAMESPACE", ""}})).port, 29500);
}

TEST(OpenMpi, MasterVariablesWin) {
  const Environment environment = read(with(kOpenMpi, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(environment.master_address, "head");
  EXPECT_EQ(environment.port, 1234);
}

TEST(OpenMpi, WinsOverSlurm) {
  Variables both = kOpenMpi;
  both.insert(kSlurm.begin(), kSlurm.end());
  EXPECT_EQ(read(both).origin, "Open MPI");
}

TEST(OpenMpi, NeedsAnAddressBeyondOneMachine) {
  const Variables two = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(refusal(two),
              AllOf(HasSubstr("MASTER_ADDR must name the host of rank 0"), HasSubstr("mpirun -x")));
  EXPECT_EQ(read(with(two, {{"MASTER_ADDR", "head"}})).master_address, "head");
}

TEST(OpenMpi, RefusesWhatIsMissingOrContradictory) {
  for (const char* name : {"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"}) {
    const std::string variable = std::string("OMPI_COMM_WORLD_") + name;
    EXPECT_THAT(refusal(with(kOpenMpi, {{variable, ""}})),
                HasSubstr("the variable " + variable + " must be set"));
    EXPECT_THAT(refusal(with(kOpenMpi, {{variable, "4x"}})),
                HasSubstr("the variable " + variable + " must be"));
  }
  EXPECT_THAT(refusal(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK must be below OMPI_COMM_WORLD_SIZE"));
}

TEST(Slurm, IsRead) {
  const Environment environment = read(kSlurm);
  expect_ranks(environment, 5, 7, 1, 2);
  EXPECT_EQ(environment.master_address, "gpu007");
  EXPECT_EQ(environment.port, 20000 + (31 * 1234 + 3) % 10000);
  EXPECT_FALSE(environment.external_store);
  EXPECT_EQ(environment.origin, "Slurm");
}

TEST(Slurm, StepsComeBeforeTheJob) {
  const Environment environment = read(with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu009"},
                                                     {"SLURM_STEP_TASKS_PER_NODE", "6"},
                                                     {"SLURM_STEP_NUM_TASKS", "6"},
                                                     {"SLURM_NODEID", "0"}}));
  expect_ranks(environment, 5, 6, 1, 6);
  EXPECT_EQ(environment.master_address, "gpu009");
}

TEST(Slurm, MasterVariablesWin) {
  const Environment environment = read(with(kSlurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(environment.master_address, "head");
  EXPECT_EQ(environment.port, 1234);
}

TEST(Slurm, LocalTasksFromWhatIsThere) {
  const Variables bare = with(kSlurm, {{"SLURM_TASKS_PER_NODE", ""}});
  EXPECT_EQ(read(with(bare, {{"SLURM_NTASKS_PER_NODE", "3"}})).local_world_size, 3);
  EXPECT_EQ(read(with(bare, {{"SLURM_NTASKS_PER_NODE", "16"}})).local_world_size, 7);
  EXPECT_EQ(read(with(bare, {{"SLURM_NNODES", "2"}})).local_world_size, 4);
  EXPECT_EQ(read(bare).local_world_size, 7);
}

TEST(Slurm, IsOneRankOutsideOfASrunStep) {
  expect_ranks(read(with(kSlurm, {{"SLURM_PROCID", ""}})), 0, 1, 0, 1);  // salloc
  const Variables batch =
      with(kSlurm, {{"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", ""}});
  expect_ranks(read(batch), 0, 1, 0, 1);
  EXPECT_EQ(
      read(with(batch, {{"SLURM_STEP_ID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "0"}})).world_size,
      7);
}

TEST(Slurm, RefusesWhatIsMissingOrContradictory) {
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_NTASKS", ""}})),
              HasSubstr("the variable SLURM_NTASKS must be set"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_LOCALID", ""}})),
              HasSubstr("the variable SLURM_LOCALID must be set"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_PROCID", "7"}})),
              HasSubstr("SLURM_PROCID must be below SLURM_NTASKS"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_JOB_ID", "abc"}})), HasSubstr("SLURM_JOB_ID must be an integer"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_NODEID", "3"}})), HasSubstr("SLURM_LOCALID must be below"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_NODEID", "4"}})),
              HasSubstr("an entry for node 4; got \"2(x3),1\""));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_JOB_NODELIST", ""}})),
              HasSubstr("SLURM_JOB_NODELIST or MASTER_ADDR"));
}

TEST(FirstHost, ExpandsTheFirstRange) {
  EXPECT_EQ(first_host("localhost"), "localhost");
  EXPECT_EQ(first_host("a1,b2"), "a1");
  EXPECT_EQ(first_host("node[003-010,12]"), "node003");
  EXPECT_EQ(first_host("node[12,3-4],other"), "node12");
  EXPECT_EQ(first_host("rack[2-3]node[07-08]-ib"), "rack2node07-ib");
  EXPECT_EQ(first_host("login-1.example.org,x"), "login-1.example.org");
}

TEST(FirstHost, RefusesWhatIsNoList) {
  for (const char* list : {"", ",a", "node[", "node[1-2", "node]", "node[]", "node[a-b]", "node[-2]"})
    EXPECT_THAT(testing::value_error([&] { first_host(list); }), HasSubstr("must be like node[003-010,12]"))
        << list;
}

TEST(CountAt, RepeatsCounts) {
  EXPECT_EQ(count_at("4", 0), 4);
  const int64_t expected[] = {2, 2, 2, 1, 16};
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(count_at("2(x3),1,16", i), expected[i]);
}

TEST(CountAt, RefusesWhatIsNoCount) {
  for (const char* counts : {"", "x", "2(x", "2(x)", "2(3)", "2(x0)", ",2", "0", "-1", "(x2)"})
    EXPECT_THAT(testing::value_error([&] { count_at(counts, 0); }), HasSubstr("must be like 2(x3),1"))
        << counts;
}

}  // namespace
}  // namespace trireme::comm
