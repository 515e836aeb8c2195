#include "trireme/alst/tile_inputs.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "trireme/core/check.h"

namespace trireme::alst {
namespace {

using at::Tensor;

std::vector<bool> are_defined(const std::vector<Tensor>& tensors) {
  std::vector<bool> defined;
  for (const auto& tensor : tensors) defined.push_back(tensor.defined());
  return defined;
}

int64_t tokens_of(const std::vector<Tensor>& tiled, int64_t dim) {
  std::optional<int64_t> tokens;
  for (size_t i = 0; i < tiled.size(); ++i) {
    if (!tiled[i].defined()) continue;
    core::check_value(-tiled[i].dim() <= dim && dim < tiled[i].dim(),
                      "[alst] a tiled input must have the dimension along which it is cut; got dimension ",
                      dim, " and input ", i, " of ", tiled[i].sizes(), "; hand it in whole");
    const int64_t size = tiled[i].size(dim);
    core::check_value(
        !tokens || *tokens == size,
        "[alst] all tiled inputs must have one size along the dimension in which they are cut; got ", size,
        " in input ", i, " along dimension ", dim, ", and ", tokens.value_or(0),
        " before; cut them alike, or hand it in whole");
    tokens = size;
  }
  core::check_value(tokens.has_value(),
                    "[alst] a function that is run by tiles needs a tiled input; got none that is defined");
  return *tokens;
}

}  // namespace

Cut cut_of(const TileInputs& inputs, const Tiling& tiling) {
  const int64_t tokens = tokens_of(inputs.tiled, tiling.dim);
  core::check_value(tiling.tiles >= 1, "[alst] the number of tiles must be 1 or more; got ", tiling.tiles);
  int64_t tiles = std::max<int64_t>(1, std::min(tiling.tiles, tokens));
  if (tiling.group && tiling.group->size() > 1) {
    const Tensor most = at::full({1}, tiles, at::TensorOptions(at::kLong).device(device_of(inputs)));
    tiles = tiling.group->all_reduce(most, "agreement on the number of tiles", comm::Reduction::max)
                .item<int64_t>();
  }
  return {tiling.dim, tokens, tiles};
}

TileInputs inputs_of_tile(const TileInputs& inputs, const Cut& cut, int64_t index) {
  const auto [first, count] = cut.tile(index);
  TileInputs tile = inputs;
  for (auto& input : tile.tiled)
    if (input.defined()) input = input.narrow(cut.dim, first, count);
  return tile;
}

at::Device device_of(const TileInputs& inputs) {
  const auto all = DefinedInputs::flat(inputs);
  return all.empty() ? at::Device(at::kCPU) : all[0].device();
}

std::vector<Tensor> requiring_gradient(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const auto& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) result.push_back(tensor);
  return result;
}

DefinedInputs::DefinedInputs(const TileInputs& inputs)
    : tiled_(are_defined(inputs.tiled)), whole_(are_defined(inputs.whole)) {}

std::vector<Tensor> DefinedInputs::flat(const TileInputs& inputs) {
  std::vector<Tensor> all;
  for (const auto* tensors : {&inputs.tiled, &inputs.whole})
    for (const auto& tensor : *tensors)
      if (tensor.defined()) all.push_back(tensor);
  return all;
}

TileInputs DefinedInputs::restored(at::TensorList tensors) const {
  TileInputs inputs;
  size_t next = 0;
  const auto restore = [&](const std::vector<bool>& defined, std::vector<Tensor>& to) {
    for (const bool is_defined : defined) to.push_back(is_defined ? tensors[next++] : Tensor());
  };
  restore(tiled_, inputs.tiled);
  restore(whole_, inputs.whole);
  return inputs;
}

}  // namespace trireme::alst
