// Reading JSON that somebody else wrote: a broken or hostile file gives a clear error, never a crash.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace trireme::core {

/// Arrays and objects may lie in each other this deep; deeper text would exhaust the stack of code that walks
/// it.
inline constexpr int kDeepestJson = 64;

enum class JsonComments { refused, allowed };

/// Parses `text` as one JSON value. `name` says in errors where the text is from. Throws `ValueError` on a
/// syntax error (with its line and column), an object with the same key twice, and nesting beyond
/// `kDeepestJson`.
nlohmann::json parse_json(std::string_view text, std::string_view name,
                          JsonComments comments = JsonComments::refused);

/// `parse_json` of a whole file; the file's path is the name.
nlohmann::json read_json(const std::filesystem::path& path, JsonComments comments = JsonComments::refused);

/// Whether `value` is an integer above `limit`. An integer of JSON may be too large for an int64.
bool is_integer_above(const nlohmann::json& value, int64_t limit);

}  // namespace trireme::core
