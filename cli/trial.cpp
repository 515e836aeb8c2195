#include "cli/trial.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "cli/exit_codes.h"
#include "cli/process.h"
#include "trireme/core/check.h"
#include "trireme/core/json.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

using Clock = std::chrono::steady_clock;

constexpr int kTick = 50;                      // milliseconds: a process's end is looked at this often
constexpr std::chrono::seconds kPatience{15};  // for a run that was asked to end

void read_available(int descriptor, std::string& text) {
  std::array<char, 4096> buffer;
  for (ssize_t size = 0; (size = read(descriptor, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), size_t(size));
}

/// A run that has ended, and what it said.
struct Outcome {
  Ending ending;
  std::string errors;
};

/// Runs `command` to its end. After a signal the command is asked to end, made to where it takes long or
/// another signal comes, and `Interrupted` is thrown.
Outcome run(const Command& command, SignalWatch& signals) {
  std::optional<int> interrupt = signals.next();
  if (interrupt) throw Interrupted{*interrupt};
  Process process(command, {{"TRIREME_PROGRESS", "lines"}});
  std::string output, errors;
  auto patience_ends = Clock::time_point::max();
  for (bool ended = false; !ended;) {
    std::array<pollfd, 3> waits{
        {{signals.descriptor(), POLLIN, 0}, {process.output(), POLLIN, 0}, {process.errors(), POLLIN, 0}}};
    ::poll(waits.data(), waits.size(), kTick);
    ended = process.poll().has_value();
    read_available(process.output(), output);
    read_available(process.errors(), errors);
    output.clear();
    if (Clock::now() > patience_ends) process.send(SIGKILL);
    while (const auto signal = signals.next()) {
      process.send(interrupt ? SIGKILL : SIGTERM);
      process.send(SIGCONT);  // where it was stopped
      if (!interrupt) patience_ends = Clock::now() + kPatience;
      interrupt = interrupt.value_or(*signal);
    }
  }
  if (interrupt) throw Interrupted{*interrupt};
  return {*process.ending(), errors};
}

/// The reason of a failure: what follows the first "error: ", or else how the run ended.
std::string reason(const Outcome& outcome) {
  constexpr std::string_view kMark = "error: ";
  const size_t begin = outcome.errors.find(kMark);
  if (begin != std::string::npos)
    return outcome.errors.substr(begin + kMark.size(),
                                 outcome.errors.find('\n', begin) - begin - kMark.size());
  const int code = outcome.ending.code;
  const Ending ending = code > kSignalBase ? Ending{.signal = code - kSignalBase} : outcome.ending;
  return ending.text() + (ending.signal == SIGKILL ? ": out of memory, most likely" : "");
}

}  // namespace

ScratchDirectory::ScratchDirectory(const fs::path& prefix) {
  std::error_code failed;
  if (prefix.has_parent_path()) fs::create_directories(prefix.parent_path(), failed);
  std::string pattern = prefix.string() + ".XXXXXX";
  core::check_value(
      !failed && mkdtemp(pattern.data()), "[cli] trials must have a directory to write into; got ",
      failed ? failed.message() : std::strerror(errno), " for ", pattern, "; set output to another");
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;  // nothing can be done about it
  fs::remove_all(path_, ignored);
}

Trials::Trials(RunArguments arguments, int64_t steps, const ScratchDirectory& scratch)
    : arguments_(std::move(arguments)), steps_(steps), output_(scratch.path() / "output") {}

train::Measurement Trials::measure(const std::vector<std::string>& overrides) {
  RunArguments trial = arguments_;
  trial.overrides.insert(trial.overrides.end(), overrides.begin(), overrides.end());
  trial.overrides.push_back(core::concatenate("steps=", steps_));
  trial.overrides.push_back("output=" + nlohmann::json(output_.string()).dump());
  auto words = train_words(trial);
  words.insert(words.end(), {"--ranks", std::to_string(trial.ranks)});
  const Outcome outcome = run({"/proc/self/exe", words}, signals_);
  core::check_value(!overrides.empty() || outcome.ending.code != kUserError, reason(outcome));
  train::Measurement measured;
  if (!outcome.ending.good())
    measured.failure = reason(outcome);
  else
    measured = read_measurement(output_ / "metrics.jsonl");
  std::error_code ignored;  // a next trial that cannot write says so
  fs::remove_all(output_, ignored);
  return measured;
}

train::Measurement read_measurement(const fs::path& metrics) {
  std::ifstream file(metrics);
  std::vector<double> seconds;
  train::Measurement measured;
  bool first = true;
  for (std::string line; std::getline(file, line); first = false) {
    const auto step = core::parse_json(line, metrics.string());
    if (!first) seconds.push_back(step.at("step_seconds"));
    measured.peak_memory_bytes =
        std::max(measured.peak_memory_bytes, step.at("peak_memory_bytes").get<int64_t>());
  }
  core::check_value(!seconds.empty(), "[cli] a trial must take two steps at least; got fewer in ",
                    metrics.string());
  measured.step_seconds = train::median(std::move(seconds));
  return measured;
}

}  // namespace trireme::cli
