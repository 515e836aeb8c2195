// The search of `trireme tune`: which options are measured in which order, which are best, and what is said.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "trireme/train/tune_space.h"

namespace trireme::train {

/// Of at least one value.
double median(std::vector<double> values);

/// What a short run under some options showed.
struct Measurement {
  double step_seconds = 0;        ///< median of the steps that count
  int64_t peak_memory_bytes = 0;  ///< of the rank that has most
  std::string failure;            ///< why there are no numbers; empty where there are
};

/// Goes through the knobs in their order, from the best options so far: the fastest that fit into the limit
/// of memory, or, while none do, those that take least. Where memory was found only by a later knob, the
/// earlier ones are tried once more. At last the given options and the best are measured again, in turns: the
/// best are chosen where they are faster each time, or take less memory in no more time, or where the given
/// ones do not fit.
class Tuner {
 public:
  using Measure = std::function<Measurement(const TunedOptions&)>;

  /// `out` gets a line for each run as it ends, and the verdict. It, and `space`, must outlive this.
  Tuner(const TuneSpace& space, std::optional<int64_t> memory_limit, Measure measure, std::ostream& out);

  /// The options to run with. Throws `std::runtime_error` where nothing fits, with what came nearest and what
  /// else may help; passes on what `measure` throws.
  TunedOptions run();

 private:
  struct Trial {
    TunedOptions options;
    Measurement measured;
  };
  /// The runs of the same options in the last rounds.
  struct Repeats {
    std::vector<double> seconds;
    double median() const { return train::median(seconds); }
    /// The largest difference between two of them, as a share of their median.
    double spread() const;
    /// Whether each was faster than the other options' run beside it.
    bool always_below(const Repeats& other) const;
  };

  bool fits(const Trial& trial) const;
  bool is_better(const Trial& a, const Trial& b) const;
  /// Among equals, the earliest.
  size_t best_trial() const;
  void search();
  void turn(Knob knob);
  Measurement attempt(const TunedOptions& options);
  void print_heading() const;
  void print_row(const TunedOptions& options, const Measurement& measured) const;

  TunedOptions confirm();
  /// Measures a trial once more, into its worst peak.
  void repeat(Trial& trial, Repeats& repeats);
  TunedOptions judge(const Trial& best, const Repeats& of_given, const Repeats& of_best) const;
  std::string numbers(const Trial& trial, const Repeats& repeats) const;
  TunedOptions choose(const Trial& trial, const std::string& because) const;
  TunedOptions keep_given(const std::string& because) const;
  [[noreturn]] void give_up() const;
  std::string name_of_given() const;

  const TuneSpace& space_;
  std::optional<int64_t> memory_limit_;
  Measure measure_;
  std::ostream& out_;
  std::vector<Trial> trials_;  // the first: the given options
};

}  // namespace trireme::train
