// Short runs of `trireme train`, each in processes of its own, and what they show.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/run_arguments.h"
#include "cli/signal_watch.h"
#include "trireme/train/tuner.h"

namespace trireme::cli {

/// A signal asked the program to end. Not an error.
struct Interrupted {
  int signal = 0;
};

/// A fresh directory "PREFIX.XXXXXX", removed with all that is in it at the end of the scope.
class ScratchDirectory {
 public:
  /// Throws `ValueError` where it cannot be made.
  explicit ScratchDirectory(const std::filesystem::path& prefix);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs trials one after the other. While it lives, SIGINT, SIGTERM and SIGHUP end the present trial.
class Trials {
 public:
  /// Trials of what `arguments` say, `steps` steps each, of which the first is not counted: units are
  /// gathered ahead from the second on. They write into `scratch`.
  Trials(RunArguments arguments, int64_t steps, const ScratchDirectory& scratch);

  /// One run, with further overrides. One that fails gives a measurement that says why. Throws `ValueError`
  /// where the options are refused without them, and `Interrupted` after a signal, when the run has ended.
  train::Measurement measure(const std::vector<std::string>& overrides);

 private:
  RunArguments arguments_;
  int64_t steps_;
  std::filesystem::path output_;
  SignalWatch signals_;
};

/// What a metrics file says: the median time of a step, the first aside, and the largest peak. Throws
/// `ValueError` where it is broken, or has fewer than two steps.
train::Measurement read_measurement(const std::filesystem::path& metrics);

}  // namespace trireme::cli
