#include "trireme/alst/captured_gradients.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "trireme/core/check.h"

namespace trireme::alst {

using at::Tensor;
using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

GraphMark::GraphMark()
    : thread_(at::RecordFunction::currentThreadId()), sequence_(at::sequence_number::peek()) {}

bool GraphMark::precedes(const Node& node) const {
  return node.thread_id() == thread_ && node.sequence_nr() >= sequence_;
}

// Ends a graph where it would have gone on to a captured tensor.
struct CapturedGradients::Catch : Node {
  Catch(std::shared_ptr<CapturedGradients> to, size_t i) : owner(std::move(to)), index(i) {}
  variable_list apply(variable_list&& gradients) override {
    owner->add(index, std::move(gradients[0]));
    return {};
  }
  std::shared_ptr<CapturedGradients> owner;
  size_t index;
};

struct Anchor::End : Node {
  variable_list apply(variable_list&&) override { return {}; }
  std::shared_ptr<CapturedGradients> outer;
};

Anchor::Anchor(at::Device device) : tensor_(at::zeros({}, at::TensorOptions(device))) {
  auto end = c10::make_intrusive<End>();
  end_ = end.get();
  torch::autograd::create_gradient_edge(tensor_, std::move(end));
}

CapturedGradients* Anchor::outer() const { return end_->outer.get(); }

CapturedGradients::CapturedGradients(const std::vector<Tensor>& given, const std::vector<bool>& given_wanted,
                                     bool found_wanted)
    : given_(given.size()), found_wanted_(found_wanted) {
  for (size_t i = 0; i < given.size(); ++i)
    add_target(given[i], torch::autograd::impl::gradient_edge(given[i]), given_wanted[i]);
}

size_t CapturedGradients::add_target(const Tensor& tensor, Edge edge, bool wanted) {
  const size_t index = targets_.size();
  places_.try_emplace({edge.function.get(), edge.input_nr}, index);
  targets_.push_back({tensor, std::move(edge), wanted});
  sums_.append();
  return index;
}

void CapturedGradients::add(size_t index, Tensor gradient) {
  std::lock_guard lock(mutex_);
  sums_.add(index, std::move(gradient));
}

// Ends `edge` here where it leads to a captured tensor, and leaves it where that is one of `own_`. False
// where it leads on.
bool CapturedGradients::redirect(Edge& edge) {
  const auto* leaf = dynamic_cast<AccumulateGrad*>(edge.function.get());
  std::lock_guard lock(mutex_);
  if (leaf && own_.contains(leaf->variable.unsafeGetTensorImpl())) return true;
  const auto place = places_.find({edge.function.get(), edge.input_nr});
  if (place == places_.end() && !leaf) return false;
  const size_t index =
      place != places_.end() ? place->second : add_target(leaf->variable, edge, found_wanted_);
  if (!targets_[index].wanted) {
    edge = Edge();
    return true;
  }
  auto end = c10::make_intrusive<Catch>(shared_from_this(), index);
  end->add_input_metadata(targets_[index].tensor);
  edge = Edge(std::move(end), 0);
  return true;
}

void CapturedGradients::cut(const variable_list& outputs, const GraphMark& start) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> open;
  for (const auto& output : outputs) open.push_back(output.grad_fn().get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    for (Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      if (auto* anchor = dynamic_cast<Anchor::End*>(edge.function.get()))
        anchor->outer = shared_from_this();
      else if (!redirect(edge) && seen.insert(edge.function.get()).second) {
        core::check_value(
            start.precedes(*edge.function),
            "[alst] a function that is run by pieces may capture parameters, and tensors without "
            "a gradient; got one that ",
            edge.function->name(), " made outside of it; hand that in as an input or as a given parameter");
        open.push_back(edge.function.get());
      }
    }
  }
}

void CapturedGradients::backward(std::vector<Tensor> outputs, const std::vector<Tensor>& gradients,
                                 const std::vector<Tensor>& own, const GraphMark& start) {
  if (outputs.empty()) return;
  {
    at::AutoGradMode with_graph(true);
    for (auto& output : outputs) output = at::alias(output);  // which may itself be a captured tensor
  }
  // What an exception leaves behind is never used.
  const auto each_own = [&](const auto& change) {
    std::lock_guard lock(mutex_);
    for (const auto& leaf : own) change(leaf.unsafeGetTensorImpl());
  };
  each_own([&](const at::TensorImpl* leaf) { own_.insert(leaf); });
  cut(outputs, start);
  torch::autograd::backward(outputs, gradients);
  each_own([&](const at::TensorImpl* leaf) { own_.erase(own_.find(leaf)); });
}

Tensor CapturedGradients::take(size_t index) {
  return sums_.take(index, targets_[index].tensor.scalar_type());
}

// From an inner function, which may have captured what is an input here.
void CapturedGradients::add_found(const Tensor& leaf, const Tensor& gradient) {
  const Edge edge = torch::autograd::impl::gradient_edge(leaf);
  {
    std::lock_guard lock(mutex_);
    if (!own_.contains(leaf.unsafeGetTensorImpl())) {
      const auto place = places_.find({edge.function.get(), edge.input_nr});
      const size_t index = place != places_.end() ? place->second : add_target(leaf, edge, found_wanted_);
      if (targets_[index].wanted) sums_.add(index, gradient);
      return;
    }
  }
  torch::autograd::backward({leaf}, {gradient.to(leaf.scalar_type())});
}

void CapturedGradients::hand_over(CapturedGradients* outer) {
  variable_list leaves, gradients;
  for (size_t i = given_; i < size(); ++i) {
    const auto dtype = tensor(i).scalar_type();
    Tensor sum = sums_.take(i, outer ? at::promoteTypes(dtype, at::kFloat) : dtype);
    if (!sum.defined()) continue;
    if (outer) {
      outer->add_found(tensor(i), sum);
      continue;
    }
    leaves.push_back(tensor(i));
    gradients.push_back(std::move(sum));
  }
  if (!leaves.empty()) torch::autograd::backward(leaves, gradients);
}

}  // namespace trireme::alst
