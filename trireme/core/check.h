// Errors of the whole library. A message reads "[module] rule; got ...; do ...".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trireme::core {

/// A mistake of the user's: a wrong option, file, shape or order of calls. Becomes `ValueError` in Python.
class ValueError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A run that cannot go on, for a reason that every rank sees alike and at the same point: one rank may speak
/// for all.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A file of our own could not be read or written any further: the disk is full, fails, or does not answer.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Other ranks did not do their part in time, or ended.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Parts>
std::string concatenate(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// Throws `ValueError` with the parts, written one after the other, unless `ok`.
template <class... Parts>
void check_value(bool ok, const Parts&... parts) {
  if (!ok) throw ValueError(concatenate(parts...));
}

/// Throws `std::logic_error` unless `ok`: an invariant of ours does not hold, whatever the user did.
template <class... Parts>
void check_internal(bool ok, const Parts&... parts) {
  if (!ok) throw std::logic_error(concatenate(parts..., "; this is a fault of trireme: please report it"));
}

/// The candidate closest to `word` by edit distance, or nothing where none is near enough to be meant.
template <class Range>
std::string_view nearest(std::string_view word, const Range& candidates);

/// Number of insertions, deletions and replacements that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b);

template <class Range>
std::string_view nearest(std::string_view word, const Range& candidates) {
  std::string_view best;
  size_t best_distance = word.size() / 2 + 1;  // more than half of the word changed: another word
  for (const auto& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace trireme::core
