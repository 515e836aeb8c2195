// Token files: what opens must be readable from its first to its last token.
#include "trireme/data/token_file.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/fuzz/files.h"
#include "tests/fuzz/fuzz.h"
#include "trireme/data/sampler.h"

namespace {

void read(std::span<const std::byte> bytes) {
  using trireme::fuzz::expect;
  trireme::fuzz::parse([&] {
    const trireme::data::TokenFile file(trireme::core::SafetensorsFile(bytes, "fuzzed"));
    expect(file.token_count() > 0 && file.documents() > 0);
    int64_t end = 0;
    for (int64_t i = 0; i < file.documents(); ++i) {
      const auto document = file.document(i);
      expect(document.begin == end && document.size() > 0);
      end = document.end;
    }
    expect(end == file.token_count());
    trireme::data::Sampler sampler(file, {{7, true, 1}, int64_t{1} << 31});
    for (int64_t i = 0; i < sampler.rows_in_epoch(0); ++i) expect(sampler.row(i).tokens.size() == 7);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  read(trireme::fuzz::bytes_of(data, size));
  const std::string file = trireme::fuzz::with_length(trireme::fuzz::text_of(data, size));
  read(std::as_bytes(std::span(file)));
  return 0;
}
