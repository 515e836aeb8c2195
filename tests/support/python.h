// Asking the Python side of the ecosystem whether it agrees.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace trireme::testing {

struct PythonResult {
  int status = -1;     ///< exit status
  std::string output;  ///< standard output and errors
};

/// Runs `script`, a file of the test's own source directory, with the environment's Python. `arguments` go to
/// the shell as they are.
inline PythonResult run_python(const std::string& script, const std::string& arguments) {
  const auto path = std::filesystem::path(TRIREME_TEST_DIR) / script;
  const std::string command = "HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 " + std::string(TRIREME_TEST_PYTHON) + " " +
                              path.string() + " " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot start " + command);
  PythonResult result;
  char buffer[4096];
  for (size_t size; (size = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    result.output.append(buffer, size);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

}  // namespace trireme::testing
