// config.json: what is read must be a model that can be built, and written back must read the same.
#include "trireme/model/config.h"

#include "tests/fuzz/fuzz.h"
#include "trireme/core/json.h"

namespace {

using trireme::model::Config;

void check(const Config& config) {
  using trireme::fuzz::expect;
  expect(config.hidden_size > 0 && config.intermediate_size > 0 && config.vocabulary_size > 0);
  expect(config.heads > 0 && config.kv_heads > 0 && config.heads % config.kv_heads == 0);
  expect(config.head_size > 0 && config.head_size % 2 == 0);
  expect(config.windows.size() == static_cast<size_t>(config.layers));
  for (const int64_t window : config.windows) expect(window >= 0);
  expect(config.rope.theta > 1 && config.rope.factor > 0);
  expect(!config.padding_token ||
         (*config.padding_token >= 0 && *config.padding_token < config.vocabulary_size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  trireme::fuzz::parse([&] {
    const Config config =
        trireme::model::parse_config(trireme::core::parse_json(trireme::fuzz::text_of(data, size), "fuzzed"));
    check(config);
    const auto exported = trireme::model::exported_config(config, "bfloat16");
    const Config again = trireme::model::parse_config(trireme::core::parse_json(exported.dump(), "exported"));
    trireme::fuzz::expect(again.windows == config.windows && again.head_size == config.head_size &&
                          again.rope.type == config.rope.type && again.rope.theta == config.rope.theta &&
                          again.norm_epsilon == config.norm_epsilon && again.dtype == "bfloat16");
  });
  return 0;
}
