// Safetensors files out of a fuzzer's bytes.
#pragma once

#include <string>
#include <string_view>

namespace trireme::fuzz {

/// Takes the bytes up to the last '}' for a header and puts its length before them: a mutation of the text
/// would otherwise nearly always fail at the length.
inline std::string with_length(std::string_view text) {
  const size_t end = text.rfind('}');
  const size_t length = end == text.npos ? 0 : end + 1;
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xff);
  return file.append(text);
}

}  // namespace trireme::fuzz
