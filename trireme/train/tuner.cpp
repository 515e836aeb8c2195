#include "trireme/train/tuner.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "trireme/core/check.h"
#include "trireme/train/option_names.h"
#include "trireme/train/progress.h"

namespace trireme::train {
namespace {

constexpr int kRounds = 3;       // in which the given and the best options are measured again
constexpr double kAlike = 0.02;  // shares of time or of memory below which a difference is none
constexpr size_t kReasonLength = 90;

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

std::string seconds_text(double seconds) { return format(seconds < 10 ? "%.3f" : "%.1f", seconds); }

std::string percent(double share) { return format("%.0f %%", 100 * share); }

std::string shortened(const std::string& text) {
  return text.size() <= kReasonLength ? text : text.substr(0, kReasonLength - 3) + "...";
}

constexpr const char* kNextLine = "\n           ";  // under the words of the line before
constexpr const char* kColumns = "%19s  %20s  %17s  %13s";

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Tuner::Repeats::spread() const {
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return (*most - *least) / median();
}

bool Tuner::Repeats::always_below(const Repeats& other) const {
  return std::equal(seconds.begin(), seconds.end(), other.seconds.begin(), other.seconds.end(),
                    std::less<>());
}

Tuner::Tuner(const TuneSpace& space, std::optional<int64_t> memory_limit, Measure measure, std::ostream& out)
    : space_(space), memory_limit_(memory_limit), measure_(std::move(measure)), out_(out) {}

bool Tuner::fits(const Trial& trial) const {
  return trial.measured.failure.empty() &&
         (!memory_limit_ || trial.measured.peak_memory_bytes <= *memory_limit_);
}

// Whether `a`, which was tried after `b`, takes its place: a hair's breadth may be the machine's mood.
bool Tuner::is_better(const Trial& a, const Trial& b) const {
  if (!a.measured.failure.empty()) return false;
  if (!b.measured.failure.empty()) return true;
  if (fits(a) != fits(b)) return fits(a);
  if (fits(a)) return a.measured.step_seconds < (1 - kAlike) * b.measured.step_seconds;
  return a.measured.peak_memory_bytes < b.measured.peak_memory_bytes;
}

size_t Tuner::best_trial() const {
  size_t best = 0;
  for (size_t i = 1; i < trials_.size(); ++i)
    if (is_better(trials_[i], trials_[best])) best = i;
  return best;
}

Measurement Tuner::attempt(const TunedOptions& options) {
  Measurement measured = measure_(options);
  print_row(options, measured);
  return measured;
}

void Tuner::turn(Knob knob) {
  const TunedOptions start = trials_[best_trial()].options;
  for (const TunedOptions& options : space_.around(start, knob)) {
    const bool known = std::any_of(trials_.begin(), trials_.end(),
                                   [&](const Trial& trial) { return space_.same(trial.options, options); });
    if (!known) trials_.push_back({options, attempt(options)});
  }
}

void Tuner::search() {
  print_heading();
  trials_.push_back({space_.given(), attempt(space_.given())});
  bool was_short = false;
  for (const Knob knob : kKnobs) {
    turn(knob);
    was_short = was_short || !fits(trials_[best_trial()]);
  }
  // A knob that was turned for the sake of memory alone: now that there is some, what is fastest?
  if (was_short && fits(trials_[best_trial()]))
    for (const Knob knob : kKnobs) turn(knob);
}

TunedOptions Tuner::run() {
  search();
  return confirm();
}

std::string Tuner::name_of_given() const {
  return space_.given_is_default() ? "the defaults" : "the options as given";
}

void Tuner::print_heading() const {
  out_ << format(kColumns, "max_live_parameters", "prefetch_bucket_size", "offload_optimizer",
                 "offload_param")
       << "  s a step  peak a rank" << std::endl;
}

void Tuner::print_row(const TunedOptions& options, const Measurement& measured) const {
  const bool has_units = space_.stage() == 3;
  out_ << format(kColumns, has_units ? std::to_string(options.max_live_parameters).c_str() : "-",
                 has_units ? std::to_string(options.prefetch_bucket_size).c_str() : "-",
                 name_of(options.optimizer, kResidences).c_str(),
                 name_of(options.parameters, kResidences).c_str());
  const Trial trial{options, measured};
  if (!measured.failure.empty())
    out_ << "  failed: " << shortened(measured.failure);
  else
    out_ << format("  %8s  %11s", seconds_text(measured.step_seconds).c_str(),
                   format_bytes(measured.peak_memory_bytes).c_str())
         << (fits(trial) ? "" : "  too much");
  out_ << (options == space_.given() ? "  (" + name_of_given() + ")" : "") << std::endl;
}

void Tuner::repeat(Trial& trial, Repeats& repeats) {
  Measurement& known = trial.measured;
  const Measurement again = attempt(trial.options);
  if (!again.failure.empty()) {
    known.failure = again.failure;
    return;
  }
  repeats.seconds.push_back(again.step_seconds);
  known.peak_memory_bytes = std::max(known.peak_memory_bytes, again.peak_memory_bytes);
}

TunedOptions Tuner::confirm() {
  for (;;) {
    // What turned out not to fit after all is no longer the best: the next one is measured.
    Trial& given = trials_.front();
    Trial& best = trials_[best_trial()];
    if (!fits(best)) give_up();
    if (&best == &given) return keep_given("nothing else that fits is faster");
    out_ << "once more, in turns:\n";
    Repeats of_given, of_best;
    for (int round = 0; round < kRounds && fits(best); ++round) {
      if (given.measured.failure.empty()) repeat(given, of_given);
      repeat(best, of_best);
    }
    if (fits(best)) return judge(best, of_given, of_best);
  }
}

TunedOptions Tuner::judge(const Trial& best, const Repeats& of_given, const Repeats& of_best) const {
  const Trial& given = trials_.front();
  const Measurement &before = given.measured, &after = best.measured;
  if (!before.failure.empty())
    return choose(best, numbers(best, of_best) + kNextLine + name_of_given() + " failed");
  const std::string both =
      numbers(best, of_best) + "; " + name_of_given() + " took " + numbers(given, of_given) + kNextLine;
  if (!fits(given))
    return choose(best, both + name_of_given() + " do not fit into " + format_bytes(*memory_limit_) +
                            ": this is the fastest that does");
  const double gain = 1 - of_best.median() / of_given.median();
  const double memory_gain = 1 - double(after.peak_memory_bytes) / double(before.peak_memory_bytes);
  const std::string noise = "; runs of the same options differed by up to " +
                            percent(std::max(of_given.spread(), of_best.spread()));
  if (gain > kAlike && of_best.always_below(of_given))
    return choose(best, both + percent(gain) + " less time" + noise);
  if (gain >= 0 && memory_gain > kAlike)
    return choose(best,
                  both + "as fast, within the noise, in " + percent(memory_gain) + " less memory" + noise);
  return keep_given("the best, " + difference(best.options, given.options) + "," + kNextLine + "took " +
                    both + "not clearly faster" + noise);
}

std::string Tuner::numbers(const Trial& trial, const Repeats& repeats) const {
  return seconds_text(repeats.median()) + " s a step and " + format_bytes(trial.measured.peak_memory_bytes);
}

TunedOptions Tuner::choose(const Trial& trial, const std::string& because) const {
  out_ << "chosen     " << difference(trial.options, space_.given()) << kNextLine << because << std::endl;
  return trial.options;
}

TunedOptions Tuner::keep_given(const std::string& because) const {
  out_ << "kept       " << name_of_given() << kNextLine << because << std::endl;
  return space_.given();
}

void Tuner::give_up() const {
  const Trial& nearest = trials_[best_trial()];  // while nothing fits, what takes least
  const std::string& failure = nearest.measured.failure;
  if (!failure.empty())
    throw std::runtime_error("[tune] a run must come to its end; got a failure of every one, such as: " +
                             failure);
  const std::string options = difference(nearest.options, space_.given());
  throw std::runtime_error(core::concatenate(
      "[tune] a run must fit into ", format_bytes(*memory_limit_), " a rank; got ",
      format_bytes(nearest.measured.peak_memory_bytes), " at least, with ",
      options.empty() ? name_of_given() : options, "; ",
      space_.has_disk() ? "" : "let states wait on a disk (--nvme-path DIR), ",
      "start more ranks, shorten data.sequence_length, set activation_checkpointing.policy to \"layer\", or "
      "raise --memory"));
}

}  // namespace trireme::train
