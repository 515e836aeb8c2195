#include "trireme/alst/tile_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "trireme/alst/replay_state.h"

namespace trireme::alst {
namespace {

using at::Tensor;

Tensor taken_gradient(const Tensor& leaf) {
  Tensor gradient = std::move(leaf.mutable_grad());
  leaf.mutable_grad().reset();
  return gradient;
}

}  // namespace

TileGradients::TileGradients(const TileInputs& inputs, const Cut& cut, const std::vector<bool>& wanted,
                             std::shared_ptr<CapturedGradients> captured)
    : inputs_(inputs),
      cut_(cut),
      tiled_(inputs.tiled.size()),
      whole_(inputs.whole.size()),
      captured_(std::move(captured)) {
  size_t next = 0;
  const auto prepare = [&](std::vector<Tensor>& tensors, std::vector<bool>& flags) {
    for (auto& tensor : tensors) {
      flags.push_back(tensor.defined() && wanted[next++]);
      if (tensor.defined()) tensor = tensor.detach();
    }
  };
  prepare(inputs_.tiled, tiled_wanted_);
  prepare(inputs_.whole, whole_wanted_);
}

TileInputs TileGradients::leaves_of_tile() {
  TileInputs leaves = inputs_of_tile(inputs_, cut_, tile_);
  const auto prepare = [](std::vector<Tensor>& tensors, const std::vector<bool>& wanted) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].defined()) tensors[i] = tensors[i].detach().requires_grad_(wanted[i]);
  };
  prepare(leaves.tiled, tiled_wanted_);
  prepare(leaves.whole, whole_wanted_);
  return leaves;
}

void TileGradients::add_tile(const Function& function, const Upstream& upstream) {
  const auto device = device_of(inputs_);
  OwnCasts casts;
  const GraphMark start;
  const TileInputs leaves = leaves_of_tile();
  std::vector<Tensor> roots, gradients;
  {
    at::AutoGradMode with_graph(true);
    auto outputs = function(leaves);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      at::NoGradGuard no_graph;
      Tensor gradient = upstream(i, outputs[i]);
      if (!gradient.defined()) continue;
      roots.push_back(std::move(outputs[i]));
      gradients.push_back(std::move(gradient));
    }
  }
  {
    AutocastOff exact(device);  // the operations of a backward pass have the dtypes of their forward ones
    captured_->backward(std::move(roots), gradients, DefinedInputs::flat(leaves), start);
  }
  collect(leaves);
  ++tile_;
}

void TileGradients::collect(const TileInputs& leaves) {
  const auto [first, count] = cut_.tile(tile_);
  for (size_t i = 0; i < leaves.tiled.size(); ++i) {
    if (!tiled_wanted_[i]) continue;
    const Tensor gradient = taken_gradient(leaves.tiled[i]);
    Tensor& all = tiled_[i];
    if (gradient.defined() && !all.defined()) {
      all = at::empty_like(inputs_.tiled[i]);
      all.narrow(cut_.dim, 0, first).zero_();  // tiles that did not use it
    }
    if (!all.defined()) continue;
    Tensor place = all.narrow(cut_.dim, first, count);
    if (gradient.defined())
      place.copy_(gradient);
    else
      place.zero_();
  }
  for (size_t i = 0; i < leaves.whole.size(); ++i)
    if (whole_wanted_[i]) whole_.add(i, taken_gradient(leaves.whole[i]));
}

std::vector<Tensor> TileGradients::take() {
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < tiled_.size(); ++i)
    if (inputs_.tiled[i].defined()) gradients.push_back(std::move(tiled_[i]));
  for (size_t i = 0; i < inputs_.whole.size(); ++i)
    if (inputs_.whole[i].defined()) gradients.push_back(whole_.take(i, inputs_.whole[i].scalar_type()));
  return gradients;
}

}  // namespace trireme::alst
