// model.safetensors.index.json: no name may lead out of the model's directory.
#include <filesystem>

#include "tests/fuzz/fuzz.h"
#include "trireme/core/json.h"
#include "trireme/model/weight_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  trireme::fuzz::parse([&] {
    const auto index = trireme::core::parse_json(trireme::fuzz::text_of(data, size), "fuzzed");
    for (const auto& [name, file] : trireme::model::parse_weight_index(index, "fuzzed")) {
      const auto path = (std::filesystem::path("/model") / file).lexically_normal();
      trireme::fuzz::expect(path.parent_path() == "/model" && path.extension() == ".safetensors");
    }
  });
  return 0;
}
