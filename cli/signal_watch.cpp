#include "cli/signal_watch.h"

#include <fcntl.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "trireme/core/check.h"

namespace trireme::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

// A handler has nothing but globals to work with.
std::array<int, 2> signal_pipe{-1, -1};
std::array<struct sigaction, kSignals.size()> previous{};

void on_signal(int signal) {
  const int kept = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const auto written = write(signal_pipe[1], &byte, 1);  // full: enough signals have come
  errno = kept;
}

}  // namespace

SignalWatch::SignalWatch() {
  core::check_internal(signal_pipe[0] < 0, "[launcher] signals are watched twice");
  if (pipe2(signal_pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw std::runtime_error(core::concatenate("[launcher] a pipe is needed; got ", std::strerror(errno)));
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous[i]);
    if (kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    sigaction(kSignals[i], &action, nullptr);
  }
}

SignalWatch::~SignalWatch() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  for (int& descriptor : signal_pipe) {
    close(descriptor);
    descriptor = -1;
  }
}

int SignalWatch::descriptor() const { return signal_pipe[0]; }

std::optional<int> SignalWatch::next() {
  unsigned char byte = 0;
  if (read(signal_pipe[0], &byte, 1) != 1) return {};
  return byte;
}

}  // namespace trireme::cli
