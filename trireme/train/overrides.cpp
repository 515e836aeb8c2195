#include "trireme/train/overrides.h"

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

}  // namespace trireme::train
