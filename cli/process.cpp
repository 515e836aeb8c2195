#include "cli/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "trireme/core/check.h"

namespace trireme::cli {
namespace {

constexpr int kCannotRun = 127;  // as a shell says it

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(core::concatenate("[launcher] ", what, " is needed; got ", std::strerror(errno)));
}

void close_descriptor(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

/// Both ends of a pipe; those still held are closed at the end.
struct Pipe {
  int read_end = -1, write_end = -1;

  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("a pipe");
    read_end = ends[0];
    write_end = ends[1];
    fcntl(read_end, F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    close_descriptor(read_end);
    close_descriptor(write_end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int take_read_end() { return std::exchange(read_end, -1); }
};

/// This process's variables with `changes` made, as "NAME=value".
std::vector<std::string> merged_environment(const Variables& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!changes.contains(text.substr(0, text.find('=')))) merged.push_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) merged.push_back(core::concatenate(name, '=', value));
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// What the child does between fork and exec: only calls that are safe in a copy of a threaded process.
[[noreturn]] void become(const char* program, char** arguments, char** variables, pid_t parent, int input,
                         int output, int errors) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotRun);  // it ended before the line above
  for (const int number : {SIGINT, SIGTERM, SIGPIPE}) signal(number, SIG_DFL);
  if (signal(SIGHUP, SIG_DFL) == SIG_IGN) signal(SIGHUP, SIG_IGN);  // nohup
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  execve(program, arguments, variables);
  _exit(kCannotRun);
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? core::concatenate("SIG", name) : core::concatenate("signal ", signal);
}

std::string Ending::text() const {
  if (signal != 0) return core::concatenate("signal ", signal, " (", signal_name(signal), ")");
  return core::concatenate("exit code ", code);
}

Process::Process(const Command& command, const Variables& variables) {
  core::check_value(access(command.program.c_str(), X_OK) == 0,
                    "[launcher] a rank must be a program that can be run; "
                    "got ",
                    command.program, " (", std::strerror(errno), ")");
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = merged_environment(variables);
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);
  Pipe output, errors;
  int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0) fail("/dev/null");
  const pid_t parent = getpid();

  // No handler of ours may run in the child, where it would write into our pipe.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  id_ = fork();
  if (id_ == 0)
    become(command.program.c_str(), const_cast<char**>(argument_pointers.data()),
           const_cast<char**>(environment_pointers.data()), parent, input, output.write_end,
           errors.write_end);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);

  close_descriptor(input);
  if (id_ < 0) fail("a new process");
  output_ = output.take_read_end();
  errors_ = errors.take_read_end();
}

Process::~Process() {
  if (!poll()) {
    send(SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  close_output();
  close_errors();
}

void Process::close_output() { close_descriptor(output_); }
void Process::close_errors() { close_descriptor(errors_); }

const std::optional<Ending>& Process::poll() {
  int status = 0;
  if (!ending_ && waitpid(id_, &status, WNOHANG) == id_)
    ending_ = WIFSIGNALED(status) ? Ending{.signal = WTERMSIG(status)} : Ending{.code = WEXITSTATUS(status)};
  return ending_;
}

void Process::send(int signal) {
  if (!poll()) kill(id_, signal);
}

}  // namespace trireme::cli
