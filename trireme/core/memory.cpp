#include "trireme/core/memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <fstream>
#include <string>
#include <string_view>

namespace trireme::core {
namespace {

int64_t status_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size())) * 1024;
  return 0;
}

}  // namespace

int64_t resident_bytes() { return status_bytes("VmRSS:"); }

int64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

bool reset_peak_resident_bytes() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";  // the kernel's code for "reset the high-water mark"
  return bool(file.flush());
}

int64_t peak_memory_bytes(c10::Device device) {
  if (device.is_cpu()) return peak_resident_bytes();
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return stats.reserved_bytes[size_t(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

}  // namespace trireme::core
