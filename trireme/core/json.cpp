#include "trireme/core/json.h"

#include <set>
#include <string>
#include <vector>

#include "trireme/core/check.h"
#include "trireme/core/mapped_file.h"
#include "trireme/core/text.h"

namespace trireme::core {
namespace {

/// Watches the parser go by: how deep it is, and which keys each open object has had.
class StructureGuard {
 public:
  explicit StructureGuard(std::string_view name) : name_(name) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      check_value(depth < kDeepestJson, "[core] JSON may nest at most ", kDeepestJson,
                  " levels; got more in ", name_);
      if (event == Event::object_start) open_objects_.emplace_back();
    } else if (event == Event::object_end) {
      open_objects_.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      const bool fresh = open_objects_.back().insert(key).second;
      if (!fresh)
        throw ValueError(
            concatenate("[core] a JSON object has each key once; got ", printable(key), " twice in ", name_));
    }
    return true;
  }

 private:
  std::string_view name_;
  std::vector<std::set<std::string>> open_objects_;
};

/// What nlohmann says, without its own prefix and without pages of the text that it quotes.
std::string reason(const nlohmann::json::exception& error) {
  std::string_view text = error.what();
  const size_t prefix = text.find("] ");
  if (text.starts_with("[json.exception") && prefix != std::string_view::npos) text.remove_prefix(prefix + 2);
  std::string result;
  for (const char c : text.substr(0, 300)) result += (c >= 0x20 && c < 0x7f) ? c : '?';
  return result;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view name, JsonComments comments) {
  // The parser takes a zero byte for the end and would not see what follows.
  check_value(text.find('\0') == text.npos, "[core] ", name, " must be valid JSON; got a zero byte in it");
  StructureGuard guard(name);
  const nlohmann::json::parser_callback_t watch = [&guard](int depth, nlohmann::json::parse_event_t event,
                                                           nlohmann::json& parsed) {
    return guard(depth, event, parsed);
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch, true, comments == JsonComments::allowed);
  } catch (const nlohmann::json::exception& error) {
    throw ValueError(concatenate("[core] ", name, " must be valid JSON; got ", reason(error)));
  }
}

nlohmann::json read_json(const std::filesystem::path& path, JsonComments comments) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string(), comments);
}

}  // namespace trireme::core
