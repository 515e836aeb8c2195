// Linked into the program, stops or ends one rank in the middle of its work, at an operation of its choice.
//
//   TRAP="RANK SIGNAL OPERATION..."   "1 9 _fused_adamw_ allgather"
//
// The rank sends itself the signal before the last of the operations, each looked for after the one before.
// An OPERATION is part of the name of one of ATen's or c10d's operators, or of a node of a graph in its
// backward pass. The rank first waits for a while, so that the others are told where it is. After signal 0 it
// does nothing any more, but lives.
#include <ATen/record_function.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::chrono::milliseconds kTold{1200};

struct Trap {
  int signal = 0;
  std::vector<std::string> operations;
  std::atomic<size_t> next = 0;
};

// The callback is a plain function.
Trap& trap() {
  static Trap trap;
  return trap;
}

std::unique_ptr<at::ObserverContext> on_operation(const at::RecordFunction& operation) {
  auto& [signal, operations, next] = trap();
  if (next == operations.size() || !std::strstr(operation.name(), operations[next].c_str())) return nullptr;
  if (++next < operations.size()) return nullptr;
  std::this_thread::sleep_for(kTold);
  kill(getpid(), signal);
  while (signal == 0) pause();
  return nullptr;
}

[[maybe_unused]] const bool is_set = [] {
  const char *text = std::getenv("TRAP"), *rank = std::getenv("RANK");
  if (!rank) rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (!text || !rank) return false;
  std::istringstream words(text);
  std::string chosen, operation;
  words >> chosen >> trap().signal;
  while (words >> operation) trap().operations.push_back(operation);
  if (chosen == rank)
    at::addGlobalCallback(at::RecordFunctionCallback(on_operation)
                              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  return chosen == rank;
}();

}  // namespace
