#include "trireme/core/json.h"

#include <exception>
#include <set>
#include <string>
#include <vector>

#include "trireme/core/check.h"
#include "trireme/core/mapped_file.h"
#include "trireme/core/text.h"

namespace trireme::core {
namespace {

using nlohmann::json;

/// What nlohmann says, without its own prefix and without pages of the text that it quotes.
std::string reason(const std::exception& error) {
  std::string_view text = error.what();
  const size_t prefix = text.find("] ");
  if (text.starts_with("[json.exception") && prefix != text.npos) text.remove_prefix(prefix + 2);
  std::string result;
  for (const char c : text.substr(0, 300)) result += (c >= 0x20 && c < 0x7f) ? c : '?';
  return result;
}

/// Watches the parser go by, and builds nothing: how deep it is, and which keys each open object has had.
/// (The parser that builds values can call back too, but walks a whole object at the end of each value in
/// it.)
class StructureGuard : public nlohmann::json_sax<json> {
 public:
  explicit StructureGuard(std::string_view name) : name_(name) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

  bool start_object(size_t) override {
    enter();
    open_objects_.emplace_back();
    return true;
  }
  bool key(string_t& key) override {
    if (!open_objects_.back().insert(key).second)
      throw ValueError(
          concatenate("[core] a JSON object has each key once; got ", printable(key), " twice in ", name_));
    return true;
  }
  bool end_object() override {
    open_objects_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    enter();
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    throw ValueError(concatenate("[core] ", name_, " must be valid JSON; got ", reason(error)));
  }

 private:
  void enter() {
    check_value(++depth_ <= kDeepestJson, "[core] JSON may nest at most ", kDeepestJson,
                " levels; got more in ", name_);
  }

  std::string_view name_;
  int depth_ = 0;
  std::vector<std::set<std::string>> open_objects_;
};

}  // namespace

json parse_json(std::string_view text, std::string_view name, JsonComments comments) {
  // The parser takes a zero byte for the end and would not see what follows.
  check_value(text.find('\0') == text.npos, "[core] ", name, " must be valid JSON; got a zero byte in it");
  const bool ignore_comments = comments == JsonComments::allowed;
  StructureGuard guard(name);
  json::sax_parse(text.begin(), text.end(), &guard, json::input_format_t::json, true, ignore_comments);
  return json::parse(text.begin(), text.end(), nullptr, true, ignore_comments);
}

json read_json(const std::filesystem::path& path, JsonComments comments) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string(), comments);
}

bool is_integer_above(const json& value, int64_t limit) {
  if (!value.is_number_unsigned()) return value.is_number_integer() && value.get<int64_t>() > limit;
  return limit < 0 || value.get<uint64_t>() > static_cast<uint64_t>(limit);
}

}  // namespace trireme::core
