// Gradients of what a function captures, caught on their way to where autograd accumulates them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "trireme/alst/gradient_sums.h"

namespace trireme::alst {

/// A point in the making of graphs on this thread.
class GraphMark {
 public:
  GraphMark();

  /// Was `node` made since, by this thread?
  bool precedes(const torch::autograd::Node& node) const;

 private:
  uint64_t thread_;
  uint64_t sequence_;
};

/// Gradients of captured tensors, summed over the graphs that reach them in fp32 at least. None of a tensor's
/// hooks sees anything before the sum is handed over. Made by std::make_shared.
///
/// Functions nest: what an inner one catches goes to the outer one, which finds the inner one's `Anchor` in
/// its graph and tells it.
class CapturedGradients : public std::enable_shared_from_this<CapturedGradients> {
 public:
  /// `given`: tensors that are known to be captured, leaves or not; which of their gradients are wanted, and
  /// whether those of any other leaf are. Others' are not even computed, where that can be spared.
  CapturedGradients(const std::vector<at::Tensor>& given, const std::vector<bool>& given_wanted,
                    bool found_wanted);

  /// Runs the graph of `outputs`, begun at `start`, backward from `gradients`. Leaves of `own` get theirs by
  /// accumulation; those of any other, and of given tensors, are caught. ValueError where the graph goes on
  /// to what was made before and was not given: that part of the graph cannot be run once for each of several
  /// graphs.
  void backward(std::vector<at::Tensor> outputs, const std::vector<at::Tensor>& gradients,
                const std::vector<at::Tensor>& own, const GraphMark& start);

  /// The tensors: those given, then leaves that were found, in an order that follows from the graphs.
  size_t size() const { return targets_.size(); }
  const at::Tensor& tensor(size_t index) const { return targets_[index].tensor; }
  /// The sum in the tensor's dtype; undefined where no graph reached it.
  at::Tensor take(size_t index);

  /// Gives the gradients of the leaves that were found to `outer`; without one, to autograd, which
  /// accumulates each once.
  void hand_over(CapturedGradients* outer);

 private:
  struct Catch;
  struct Target {
    at::Tensor tensor;
    torch::autograd::Edge edge;  // keeps a leaf's end of the graph the same
    bool wanted;
  };
  using Key = std::pair<const torch::autograd::Node*, uint32_t>;

  size_t add_target(const at::Tensor& tensor, torch::autograd::Edge edge, bool wanted);
  void cut(const std::vector<at::Tensor>& outputs, const GraphMark& start);
  bool redirect(torch::autograd::Edge& edge);
  void add(size_t index, at::Tensor gradient);
  void add_found(const at::Tensor& leaf, const at::Tensor& gradient);

  size_t given_;
  bool found_wanted_;
  std::mutex mutex_;  // devices run their parts of a graph beside each other
  std::vector<Target> targets_;
  std::map<Key, size_t> places_;
  GradientSums sums_;
  std::multiset<const at::TensorImpl*> own_;  // of all backward passes that are under way
};

/// An input of a node whose function captures parameters: it requires a gradient, so that the node is in the
/// graph whatever its other inputs do, and is where an outer function says that it catches gradients.
class Anchor {
 public:
  explicit Anchor(at::Device device);

  const at::Tensor& tensor() const { return tensor_; }
  /// Where the node's captured gradients go, or none.
  CapturedGradients* outer() const;

 private:
  friend class CapturedGradients;
  struct End;
  at::Tensor tensor_;
  End* end_ = nullptr;  // owned by the tensor
};

}  // namespace trireme::alst
