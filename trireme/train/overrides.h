// Options set on the command line: "key.path=value".
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trireme::train {

/// Sets what `text`, "key.path=value", says in `options`. The value is JSON, or else taken as text; null
/// removes the key. Objects on the way are made. Throws `ValueError` where `text` has no such form, or the
/// path leads through a value that is no object.
void apply_override(nlohmann::json& options, std::string_view text);

}  // namespace trireme::train
