// golden_logits MODEL TOKENS OUTPUT RANKS: the logits of a model directory, for tests in Python.
// TOKENS is a safetensors file with `tokens` (I64, [B, S]); OUTPUT gets `logits` (F32, [B, S, V]). Ranks are
// threads that share each row and partition the parameters.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "trireme/comm/mesh.h"
#include "trireme/core/safetensors.h"
#include "trireme/core/safetensors_writer.h"
#include "trireme/model/weights.h"

namespace trireme::tests {
namespace {

at::Tensor read_tokens(const char* path) {
  const core::SafetensorsFile file(path);
  const auto& entry = file.at("tokens");
  // Cloned: the mapping may lie unaligned, and ends here.
  return at::from_blob(const_cast<std::byte*>(file.bytes(entry).data()), entry.shape, at::kLong).clone();
}

at::Tensor slice_of_logits(const comm::Connection& connection, const char* model, const at::Tensor& tokens) {
  const at::NoGradGuard no_graph;
  const auto mesh = comm::Mesh::create(connection, connection.size());
  model::Decoder decoder(model::read_config(model), {}, mesh);
  model::load_weights(decoder, model::WeightFiles::open(model));
  const auto slice =
      sp::slice_batch({.tokens = tokens, .labels = tokens, .document_lengths = {}, .extra = {}},
                      mesh.sequence.rank(), mesh.sequence.size());
  return decoder.logits(slice, {}).view({tokens.size(0), slice.tokens.size(1), -1});
}

int run(const char* model, const char* tokens_path, const char* output, int64_t ranks) {
  const auto tokens = read_tokens(tokens_path);
  std::vector<at::Tensor> slices{size_t(ranks)};
  run_ranks(ranks, [&](const comm::Connection& connection) {
    slices[size_t(connection.rank())] = slice_of_logits(connection, model, tokens);
  });
  const auto logits = at::cat(slices, 1).narrow(1, 0, tokens.size(1)).contiguous();  // without the padding
  core::SafetensorsWriter writer(output, {{"logits", core::DType::f32, logits.sizes().vec()}});
  writer.write("logits", {static_cast<const std::byte*>(logits.data_ptr()), logits.nbytes()});
  writer.finish();
  return 0;
}

}  // namespace
}  // namespace trireme::tests

int main(int count, char** words) try {
  if (count != 5) throw std::invalid_argument("usage: golden_logits MODEL TOKENS OUTPUT RANKS");
  return trireme::tests::run(words[1], words[2], words[3], std::atoll(words[4]));
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
