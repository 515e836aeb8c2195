// `trireme info`: what this build and this machine have.
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/memory_settings.h"
#include "trireme/comm/backends.h"
#include "trireme/train/progress.h"

namespace trireme::cli {
namespace {

/// The value of the first line "FIELD: VALUE" of a file below /proc; empty where there is none.
std::string proc_field(const char* path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(field) || colon == line.npos) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == line.npos ? "" : line.substr(value);
  }
  return "";
}

std::string memory_text(const char* field) {
  const std::string kilobytes = proc_field("/proc/meminfo", field);
  return kilobytes.empty() ? "unknown" : train::format_bytes(std::stoll(kilobytes) * 1024);
}

void print_devices(std::ostream& out) {
  const auto type = at::accelerator::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  if (count == 0) {
    out << "accelerators   none: training runs on the CPU\n";
    return;
  }
  for (int index = 0; index < count; ++index) {
    const auto [free, total] = at::accelerator::getMemoryInfo(c10::DeviceIndex(index));
    out << (index == 0 ? "accelerators   " : "               ") << c10::Device(*type, c10::DeviceIndex(index))
        << ", " << train::format_bytes(int64_t(total)) << ", " << train::format_bytes(int64_t(free))
        << " free\n";
  }
}

int info() {
  std::ostream& out = std::cout;
  const std::string processor = proc_field("/proc/cpuinfo", "model name");
  out << "trireme        " << TRIREME_VERSION << '\n'
      << "LibTorch       " << TORCH_VERSION << '\n'
      << "processor      " << (processor.empty() ? "unknown" : processor) << ", "
      << std::thread::hardware_concurrency() << " cores, " << at::get_cpu_capability() << '\n'
      << "threads        " << at::get_num_threads()
      << " (OMP_NUM_THREADS sets it; ranks of --ranks share the cores)\n"
      << "allocator      " << host_allocator() << '\n'
      << "memory         " << memory_text("MemTotal") << ", " << memory_text("MemAvailable")
      << " available\n";
  print_devices(out);
  out << "gloo           built in: ranks on CPUs\n"
      << "NCCL           "
      << (comm::has_nccl()
              ? "built in: ranks on CUDA devices"
              : "not built in: ranks on CUDA devices need a build against a CUDA torch (install one into "
                ".venv, with a CUDA toolkit, and build again)")
      << std::endl;
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& program, Action& chosen) {
  CLI::App* command =
      program.add_subcommand("info", "Print versions, devices, backends, and what is missing");
  command->footer("Example:\n  trireme info");
  command->callback([&chosen] { chosen = info; });
}

}  // namespace trireme::cli
