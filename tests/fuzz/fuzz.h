// What the fuzzers share: which exceptions are an answer, and which are a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "trireme/core/check.h"

namespace trireme::fuzz {

inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs `parser`. A `ValueError` is a good answer to a bad file if it fits a terminal; any other exception
/// ends the fuzzer.
template <class Parser>
void parse(Parser&& parser) {
  try {
    parser();
  } catch (const core::ValueError& error) {
    const std::string_view text = error.what();
    if (text.empty() || text.size() > 2000) std::abort();
    for (const char c : text)
      if (c < 0x20 || c > 0x7e) std::abort();
  }
}

/// Ends the fuzzer unless `ok`: the parser let something through that its contract rules out.
inline void expect(bool ok) {
  if (!ok) std::abort();
}

}  // namespace trireme::fuzz
