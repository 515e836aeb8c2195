#include "trireme/model/config_fields.h"

#include <cmath>
#include <optional>

#include "trireme/core/check.h"
#include "trireme/core/json.h"
#include "trireme/core/text.h"

namespace trireme::model::detail {

using nlohmann::json;

Fields::Fields(const json& object, std::string_view file_name) : object_(object), file_name_(file_name) {
  core::check_value(object.is_object(), "[model] a JSON object is needed; got ", object.type_name(), " in ",
                    file_name);
}

namespace {

/// An integer of JSON in an int64, or nothing.
std::optional<int64_t> int64_of(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
  return value.get<int64_t>();
}

/// A value as an error shows it: numbers and the like as they are, other text in quotes.
std::string shown(const json& value) {
  if (value.is_number() || value.is_boolean() || value.is_null()) return value.dump();
  return core::printable(value.is_string() ? value.get_ref<const std::string&>() : value.dump());
}

}  // namespace

bool Fields::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

int64_t Fields::size(const char* key, int64_t largest) const {
  const json& given = value(key);
  const bool too_large = core::is_integer_above(given, largest);
  const auto found = int64_of(given);
  if (!found || *found <= 0 || too_large)
    refuse(key, "a size is " + core::integer_rule(1, largest, too_large));
  return *found;
}

int64_t Fields::integer(const char* key) const {
  const auto found = int64_of(value(key));
  if (!found) refuse(key, "a 64-bit integer is needed");
  return *found;
}

double Fields::positive(const char* key) const {
  const double result = number(key);
  if (!(result > 0)) refuse(key, "a number above 0 is needed");
  return result;
}

double Fields::number(const char* key) const {
  const json& found = value(key);
  if (!found.is_number() || !std::isfinite(found.get<double>())) refuse(key, "a number is needed");
  return found.get<double>();
}

bool Fields::flag(const char* key) const {
  const json& found = value(key);
  if (!found.is_boolean()) refuse(key, "true or false is needed");
  return found.get<bool>();
}

const std::string& Fields::text(const char* key) const {
  const json& found = value(key);
  if (!found.is_string()) refuse(key, "a string is needed");
  return found.get_ref<const std::string&>();
}

const json& Fields::array(const char* key) const {
  const json& found = value(key);
  if (!found.is_array()) refuse(key, "an array is needed");
  return found;
}

const json& Fields::object(const char* key) const {
  const json& found = value(key);
  if (!found.is_object()) refuse(key, "an object is needed");
  return found;
}

void Fields::refuse(const char* key, std::string_view rule) const {
  const auto found = object_.find(key);
  const std::string got = found == object_.end() ? "nothing" : shown(*found);
  throw core::ValueError(
      core::concatenate("[model] ", rule, "; got `", key, "` = ", got, " in ", file_name_));
}

void Fields::refuse_together(std::string_view rule, std::string_view values, std::string_view advice) const {
  throw core::ValueError(
      core::concatenate("[model] ", rule, "; got ", values, " in ", file_name_, "; ", advice));
}

const json& Fields::value(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end())
    throw core::ValueError(core::concatenate("[model] `", key, "` is needed; got nothing in ", file_name_));
  return *found;
}

}  // namespace trireme::model::detail
