#include "tests/cli/processes.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "tests/support/files.h"

namespace trireme::cli {

using namespace std::chrono_literals;

char state_of(pid_t process) {
  const std::string text = testing::read_text("/proc/" + std::to_string(process) + "/stat");
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos ? '\0' : text[name_end + 2];
}

bool all_end(const std::vector<pid_t>& processes) {
  const auto runs = [](pid_t process) {
    const char state = state_of(process);
    return state != '\0' && state != 'Z';
  };
  const auto limit = std::chrono::steady_clock::now() + 10s;
  while (std::any_of(processes.begin(), processes.end(), runs)) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

void read_available(int descriptor, std::string& text) {
  std::array<char, 4096> buffer;
  for (ssize_t size = 0; (size = read(descriptor, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), size_t(size));
}

}  // namespace trireme::cli
