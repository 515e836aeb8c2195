// Reading JSON strictly: every key is known, of the right type and in range, or is refused by its full path.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/check.h"

namespace trireme::train {

/// Values that a number may take. `text` says so in an error: "[options] KEY must be TEXT; got ...".
struct Range {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
  bool low_allowed = true;
  bool high_allowed = true;
  std::string_view text = "a number of at least 0";

  bool contains(double value) const {
    return (low_allowed ? value >= low : value > low) && (high_allowed ? value <= high : value < high);
  }
};

inline constexpr Range kPositive{.low_allowed = false, .text = "a number above 0"};
inline constexpr Range kNotNegative{};

/// The names that a text value may have, and what each means.
template <class Value, size_t count>
using Choices = std::array<std::pair<std::string_view, Value>, count>;

/// The keys that an object may have.
using Keys = std::vector<std::string_view>;

/// Reads one JSON object. Every method that reads throws `ValueError` for a wrong type or value; a value
/// without a default is required. The JSON must outlive the reader.
class ObjectReader {
 public:
  /// Refuses `object` unless it is an object, and a key that is not one of `keys`, with its value and the
  /// nearest known key. `path` is the full path of the object, empty for the top.
  ObjectReader(const nlohmann::json& object, std::string path, Keys keys);

  bool has(std::string_view key) const;

  /// Also in the form 5e7.
  int64_t integer(std::string_view key, std::optional<int64_t> otherwise, int64_t low,
                  int64_t high = std::numeric_limits<int64_t>::max()) const;
  double number(std::string_view key, std::optional<double> otherwise, const Range& range) const;
  bool boolean(std::string_view key, std::optional<bool> otherwise) const;
  /// A text that is not empty (the default may be).
  std::string text(std::string_view key, std::optional<std::string> otherwise) const;
  template <class Value, size_t count>
  Value choice(std::string_view key, std::optional<Value> otherwise,
               const Choices<Value, count>& choices) const;
  /// A list of texts that are not empty; an empty one where the key is missing.
  std::vector<std::string> texts(std::string_view key) const;
  /// Readers of the objects in the list under `key`, which may have `keys`; none where the key is missing.
  std::vector<ObjectReader> objects(std::string_view key, const Keys& keys) const;
  /// The value whatever its type, or null where the key is missing.
  const nlohmann::json* any(std::string_view key) const;
  /// A reader of the object under `key`, which may have `keys`; of an empty object where the key is missing.
  ObjectReader object(std::string_view key, Keys keys) const;

  /// Throws "[options] PATH.KEY must be RULE; got VALUE". The key is there.
  [[noreturn]] void refuse(std::string_view key, std::string_view rule) const;
  std::string path_of(std::string_view key) const;

 private:
  /// Null where the key is missing. `key` is one of `keys_`.
  const nlohmann::json* find(std::string_view key) const;
  [[noreturn]] void refuse_missing(std::string_view key) const;
  /// The default; throws where there is none.
  template <class Value>
  Value missing(std::string_view key, const std::optional<Value>& otherwise) const {
    if (!otherwise) refuse_missing(key);
    return *otherwise;
  }

  const nlohmann::json& object_;
  std::string path_;
  Keys keys_;
};

template <class Value, size_t count>
Value ObjectReader::choice(std::string_view key, std::optional<Value> otherwise,
                           const Choices<Value, count>& choices) const {
  const nlohmann::json* value = find(key);
  if (!value) return missing(key, otherwise);
  std::string rule;
  for (size_t i = 0; i < count; ++i) {
    if (value->is_string() && value->get_ref<const std::string&>() == choices[i].first)
      return choices[i].second;
    rule += core::concatenate(i == 0 ? "" : i + 1 == count ? " or " : ", ", '"', choices[i].first, '"');
  }
  refuse(key, rule);
}

}  // namespace trireme::train
