// Options set on the command line: "key.path=value".
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::train {

/// Sets what `text`, "key.path=value", says in `options`. The value is JSON, or else taken as text; null
/// removes the key. Objects on the way are made. Throws `ValueError` where `text` has no such form, or the
/// path leads through a value that is no object.
void apply_override(nlohmann::json& options, std::string_view text);

/// Applies each in turn, so that the last one of a key wins. `model.path` and `model.config` exclude each
/// other: where the overrides set one of the two, they take the place of the other in `options`.
void apply_overrides(nlohmann::json& options, const std::vector<std::string>& overrides);

}  // namespace trireme::train
