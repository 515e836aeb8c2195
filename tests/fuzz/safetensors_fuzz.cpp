// The header of safetensors files, as they are and with a length that fits the text.
#include "trireme/core/safetensors.h"

#include <string>

#include "tests/fuzz/files.h"
#include "tests/fuzz/fuzz.h"

namespace {

void read(std::span<const std::byte> bytes) {
  trireme::fuzz::parse([&] {
    const trireme::core::SafetensorsFile file(bytes, "fuzzed");
    size_t covered = 0;
    for (const auto& entry : file.entries()) {
      const auto data = file.bytes(file.at(entry.name));
      trireme::fuzz::expect(trireme::core::tensor_bytes(entry.dtype, entry.shape) == entry.bytes());
      trireme::fuzz::expect(data.empty() || (data.data() > bytes.data() && &data.back() <= &bytes.back()));
      covered += data.size();
    }
    trireme::fuzz::expect(covered <= bytes.size());
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  read(trireme::fuzz::bytes_of(data, size));
  const std::string file = trireme::fuzz::with_length(trireme::fuzz::text_of(data, size));
  read(std::as_bytes(std::span(file)));
  return 0;
}
