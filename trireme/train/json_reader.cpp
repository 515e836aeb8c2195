#include "trireme/train/json_reader.h"

#include <cmath>

#include <algorithm>

#include "trireme/core/json.h"
#include "trireme/core/text.h"

namespace trireme::train {
namespace {

using nlohmann::json;

/// A value as an error shows it: short, on one line.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// 5e7, as people write sizes, is an integer to them.
json as_integer(const json& value) {
  constexpr double kExact = 9007199254740992;  // 2^53: integers up to it are exact
  if (!value.is_number_float()) return value;
  const auto number = value.get<double>();
  return std::trunc(number) == number && std::abs(number) <= kExact ? json(int64_t(number)) : value;
}

}  // namespace

ObjectReader::ObjectReader(const json& object, std::string path, Keys keys)
    : object_(object), path_(std::move(path)), keys_(std::move(keys)) {
  core::check_value(object.is_object(), "[options] ", path_.empty() ? "the whole" : path_,
                    " must be an object {...}; got ", shown(object));
  for (const auto& [key, value] : object.items()) {
    if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) continue;
    const std::string_view meant = core::nearest(key, keys_);
    std::string advice = meant.empty() ? "the keys here are" : "did you mean " + path_of(meant) + "?";
    if (meant.empty())
      for (size_t i = 0; i < keys_.size(); ++i) advice += core::concatenate(i == 0 ? " " : ", ", keys_[i]);
    throw core::ValueError(core::concatenate("[options] ", path_of(key), " is not a known key; got ",
                                             shown(value), "; ", advice));
  }
}

std::string ObjectReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : core::concatenate(path_, ".", key);
}

bool ObjectReader::has(std::string_view key) const { return find(key) != nullptr; }

const json* ObjectReader::find(std::string_view key) const {
  core::check_internal(std::find(keys_.begin(), keys_.end(), key) != keys_.end(), "[options] ", path_of(key),
                       " is read but not declared");
  const auto found = object_.find(key);
  return found == object_.end() ? nullptr : &*found;
}

void ObjectReader::refuse_missing(std::string_view key) const {
  throw core::ValueError(core::concatenate("[options] ", path_of(key), " must be given; it is missing"));
}

void ObjectReader::refuse(std::string_view key, std::string_view rule) const {
  throw core::ValueError(
      core::concatenate("[options] ", path_of(key), " must be ", rule, "; got ", shown(*find(key))));
}

int64_t ObjectReader::integer(std::string_view key, std::optional<int64_t> otherwise, int64_t low,
                              int64_t high) const {
  const json* value = find(key);
  if (!value) return missing(key, otherwise);
  const json whole = as_integer(*value);
  const bool too_large = core::is_integer_above(whole, high);
  if (whole.is_number_integer() && !too_large && whole.get<int64_t>() >= low) return whole.get<int64_t>();
  refuse(key, core::integer_rule(low, high, too_large));
}

double ObjectReader::number(std::string_view key, std::optional<double> otherwise, const Range& range) const {
  const json* value = find(key);
  if (!value) return missing(key, otherwise);
  if (!value->is_number() || !range.contains(value->get<double>())) refuse(key, range.text);
  return value->get<double>();
}

bool ObjectReader::boolean(std::string_view key, std::optional<bool> otherwise) const {
  const json* value = find(key);
  if (!value) return missing(key, otherwise);
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::string ObjectReader::text(std::string_view key, std::optional<std::string> otherwise) const {
  const json* value = find(key);
  if (!value) return missing(key, otherwise);
  if (!value->is_string() || value->get_ref<const std::string&>().empty())
    refuse(key, "a text that is not empty");
  return value->get<std::string>();
}

std::vector<std::string> ObjectReader::texts(std::string_view key) const {
  const json* value = find(key);
  std::vector<std::string> all;
  if (!value) return all;
  const auto is_text = [](const json& item) {
    return item.is_string() && !item.get_ref<const std::string&>().empty();
  };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_text))
    refuse(key, "a list of texts that are not empty");
  return value->get<std::vector<std::string>>();
}

std::vector<ObjectReader> ObjectReader::objects(std::string_view key, const Keys& keys) const {
  const json* value = find(key);
  std::vector<ObjectReader> all;
  if (!value) return all;
  const auto is_object = [](const json& item) { return item.is_object(); };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_object))
    refuse(key, "a list of objects {...}");
  for (size_t i = 0; i < value->size(); ++i)
    all.emplace_back((*value)[i], core::concatenate(path_of(key), "[", i, "]"), keys);
  return all;
}

const json* ObjectReader::any(std::string_view key) const { return find(key); }

ObjectReader ObjectReader::object(std::string_view key, Keys keys) const {
  static const json empty = json::object();
  const json* value = find(key);
  return {value ? *value : empty, path_of(key), std::move(keys)};
}

}  // namespace trireme::train
