#include "trireme/train/overrides.h"

#include <algorithm>

#include "trireme/core/check.h"
#include "trireme/core/json.h"

namespace trireme::train {
namespace {

using nlohmann::json;

json parse_value(std::string_view text) {
  try {
    return core::parse_json(text, "override");
  } catch (const core::ValueError&) {
    return text;
  }
}

/// Whether an override sets `key` or something below it.
bool sets(std::string_view override, std::string_view key) {
  const size_t equals = override.find('=');
  if (equals == std::string_view::npos || override.substr(equals + 1) == "null") return false;
  const std::string_view path = override.substr(0, equals);
  return path == key || (path.starts_with(key) && path[key.size()] == '.');
}

/// Removes the model that `options` names where the overrides name another one.
void make_way_for_model(json& options, const std::vector<std::string>& overrides) {
  const auto set = [&](std::string_view key) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const auto& text) { return sets(text, key); });
  };
  const bool path = set("model.path"), config = set("model.config");
  if (path == config || !options.is_object()) return;  // both: refused for what it is
  const auto model = options.find("model");
  if (model != options.end() && model->is_object()) model->erase(path ? "config" : "path");
}

}  // namespace

void apply_override(json& options, std::string_view text) {
  const size_t equals = text.find('=');
  const std::string_view path = text.substr(0, equals);
  core::check_value(equals != std::string_view::npos && !path.empty() && !path.starts_with('.') &&
                        !path.ends_with('.') && path.find("..") == std::string_view::npos,
                    "[options] an override must be key.path=value; got \"", text, '"');
  json* object = &options;
  size_t begin = 0;
  for (size_t dot = path.find('.'); dot != std::string_view::npos;
       begin = dot + 1, dot = path.find('.', begin)) {
    core::check_value(object->is_object(), "[options] an override must lead through objects; got \"", text,
                      "\", where ", path.substr(0, begin ? begin - 1 : 0), " is ", object->dump());
    json& next = (*object)[std::string(path.substr(begin, dot - begin))];
    if (next.is_null()) next = json::object();
    object = &next;
  }
  core::check_value(object->is_object(), "[options] an override must lead through objects; got \"", text,
                    "\", where ", path.substr(0, begin ? begin - 1 : 0), " is ", object->dump());
  const std::string key(path.substr(begin));
  json value = parse_value(text.substr(equals + 1));
  if (value.is_null())
    object->erase(key);
  else
    (*object)[key] = std::move(value);
}

void apply_overrides(json& options, const std::vector<std::string>& overrides) {
  make_way_for_model(options, overrides);
  for (const std::string& override : overrides) apply_override(options, override);
}

}  // namespace trireme::train
