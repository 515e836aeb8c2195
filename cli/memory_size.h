// Sizes of memory on the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::cli {

/// The bytes of "8GiB" or "1.5 GB"; nothing where `text` has no such form, or says nothing above 0.
std::optional<int64_t> parse_memory(std::string_view text);

/// CLI11's check of an option that is a size: empty where `text` is right.
std::string fault_of_memory(const std::string& text);

}  // namespace trireme::cli
